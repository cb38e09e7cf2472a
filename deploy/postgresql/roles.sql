-- Roles for the session reconciler. Run as a superuser (or a role with CREATEROLE that owns the database) with psql,
-- connected to the database:
--
--   psql -v ON_ERROR_STOP=1 -d reconciler -f roles.sql
--
-- May be run again: after each `reconciler db upgrade` it grants what the upgrade has added, and takes back what an
-- earlier version granted too much.
--
--   reconciler_owner     owns the schema and everything in it; nobody logs in as it
--   reconciler_migrator  logs in for `reconciler db upgrade`, acts as the owner
--   reconciler_runtime   daemons and runners: rows, no tables
--   reconciler_reader    dashboards and people: the public views, no payloads
--
-- Logins get their passwords from you:  ALTER ROLE reconciler_runtime PASSWORD '…';

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'reconciler_owner') THEN
        CREATE ROLE reconciler_owner NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'reconciler_migrator') THEN
        CREATE ROLE reconciler_migrator LOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'reconciler_runtime') THEN
        CREATE ROLE reconciler_runtime LOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'reconciler_reader') THEN
        CREATE ROLE reconciler_reader LOGIN;
    END IF;
END $$;

GRANT reconciler_owner TO reconciler_migrator;
-- What the migrator makes is the owner's, whoever of several migrators made it.
ALTER ROLE reconciler_migrator SET role = 'reconciler_owner';
ALTER ROLE reconciler_reader SET default_transaction_read_only = on;
ALTER ROLE reconciler_reader SET statement_timeout = '60s';

-- Nothing is for everybody.
DO $$
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO reconciler_migrator, reconciler_runtime, reconciler_reader',
                   current_database());
    -- `db upgrade` makes the schema where there is none.
    EXECUTE format('GRANT CREATE ON DATABASE %I TO reconciler_owner', current_database());
END $$;

CREATE SCHEMA IF NOT EXISTS reconciler AUTHORIZATION reconciler_owner;
ALTER SCHEMA reconciler OWNER TO reconciler_owner;
REVOKE ALL ON SCHEMA reconciler FROM PUBLIC;
GRANT USAGE ON SCHEMA reconciler TO reconciler_runtime, reconciler_reader;

-- A schema that somebody else has made goes over to the owner, table by table.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.oid::regclass AS name, c.relkind AS kind FROM pg_class c
        WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind IN ('r', 'p', 'v')
          AND c.relowner <> 'reconciler_owner'::regrole
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO reconciler_owner',
                       CASE found.kind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, found.name);
    END LOOP;
END $$;

-- Daemons and runners: rows of every table; which version the schema has is read only, so that no row of theirs can
-- make a program believe another one.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA reconciler TO reconciler_runtime;
DO $$
BEGIN
    IF to_regclass('reconciler.alembic_version') IS NOT NULL THEN
        REVOKE INSERT, UPDATE, DELETE ON reconciler.alembic_version FROM reconciler_runtime;
    END IF;
END $$;

-- Readers: the public views and nothing else. A view reads its tables as its owner does.
REVOKE ALL ON ALL TABLES IN SCHEMA reconciler FROM reconciler_reader;
DO $$
DECLARE
    found regclass;
BEGIN
    FOR found IN
        SELECT c.oid::regclass FROM pg_class c
        WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind = 'v'
    LOOP
        EXECUTE format('GRANT SELECT ON %s TO reconciler_reader', found);
    END LOOP;
END $$;

-- What the owner makes from now on: rows for the runtime at once. New views are granted by running this again.
ALTER DEFAULT PRIVILEGES FOR ROLE reconciler_owner IN SCHEMA reconciler
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO reconciler_runtime;
