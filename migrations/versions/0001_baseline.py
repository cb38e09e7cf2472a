"""Baseline: all tables, indexes and views of the first release.

Written by migrations/regenerate.py from the models; frozen with the first release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TEXT = sa.Text()
# Compared by code point.
ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLAG = sa.Boolean(create_constraint=False).with_variant(sa.Integer(), "sqlite")
REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")

VIEWS = {
    "v_pending": {
        "postgresql": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.status AS status,
  s.kind AS kind,
  s.ticket AS ticket,
  NOT EXISTS (SELECT 1 FROM submissions b WHERE b.session_id = s.session_id AND b.ticket < s.ticket AND b.status <> 'settled') AS is_head,
  s.admitted_at AS admitted_at,
  s.deadline_at AS deadline_at,
  s.held_at AS held_at,
  s.held_reason AS held_reason,
  s.abort_requested_at AS abort_requested_at,
  s.parked_until AS parked_until,
  s.park_reason AS park_reason,
  s.reconcile_at AS reconcile_at,
  s.not_before AS not_before,
  CASE WHEN s.status = 'queued' AND s.not_before IS NOT NULL AND s.held_at IS NULL AND s.abort_requested_at IS NULL AND (s.deadline_at IS NULL OR s.deadline_at > statement_timestamp()) AND e.origin = 'native' AND s.revision = s.decision_revision AND (s.decision_reason = 'admitted' OR s.decision_detail = 'input_missing' OR e.leaf_moved_version <= s.decision_version) AND NOT EXISTS (SELECT 1 FROM submissions b WHERE b.session_id = s.session_id AND b.ticket < s.ticket AND b.status <> 'settled') THEN s.not_before END AS claimable_from,
  COALESCE(s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing', FALSE) AS is_blocked,
  s.decision_count AS decision_number,
  s.decision_action AS decision_action,
  s.decision_reason AS decision_reason,
  s.decision_detail AS decision_detail,
  s.current_attempt_id AS attempt_id,
  a.number AS attempt_number,
  a.owner AS owner,
  a.claimed_at AS claimed_at,
  a.beat_at AS beat_at,
  a.lease_expires_at AS lease_expires_at,
  a.progress_at AS progress_at,
  l.end_kind AS last_attempt_end,
  s.claims AS claims,
  s.attempts_spent AS attempts_spent,
  s.crashes_in_row AS crashes_in_row,
  s.provider_errors AS provider_errors,
  s.redispatches AS redispatches,
  s.releases AS releases,
  s.revision AS revision,
  e.version AS session_version,
  e.leaf_entry_id AS leaf_entry_id,
  CAST(EXTRACT(EPOCH FROM (statement_timestamp() - s.admitted_at)) AS double precision) AS pending_for_s
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
LEFT JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id
LEFT JOIN attempts l ON l.session_id = s.session_id AND l.attempt_id = s.last_attempt_id
WHERE s.status <> 'settled'""",
        "sqlite": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.status AS status,
  s.kind AS kind,
  s.ticket AS ticket,
  NOT EXISTS (SELECT 1 FROM submissions b WHERE b.session_id = s.session_id AND b.ticket < s.ticket AND b.status <> 'settled') AS is_head,
  s.admitted_at AS admitted_at,
  s.deadline_at AS deadline_at,
  s.held_at AS held_at,
  s.held_reason AS held_reason,
  s.abort_requested_at AS abort_requested_at,
  s.parked_until AS parked_until,
  s.park_reason AS park_reason,
  s.reconcile_at AS reconcile_at,
  s.not_before AS not_before,
  CASE WHEN s.status = 'queued' AND s.not_before IS NOT NULL AND s.held_at IS NULL AND s.abort_requested_at IS NULL AND (s.deadline_at IS NULL OR s.deadline_at > (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) AND e.origin = 'native' AND s.revision = s.decision_revision AND (s.decision_reason = 'admitted' OR s.decision_detail = 'input_missing' OR e.leaf_moved_version <= s.decision_version) AND NOT EXISTS (SELECT 1 FROM submissions b WHERE b.session_id = s.session_id AND b.ticket < s.ticket AND b.status <> 'settled') THEN s.not_before END AS claimable_from,
  COALESCE(s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing', FALSE) AS is_blocked,
  s.decision_count AS decision_number,
  s.decision_action AS decision_action,
  s.decision_reason AS decision_reason,
  s.decision_detail AS decision_detail,
  s.current_attempt_id AS attempt_id,
  a.number AS attempt_number,
  a.owner AS owner,
  a.claimed_at AS claimed_at,
  a.beat_at AS beat_at,
  a.lease_expires_at AS lease_expires_at,
  a.progress_at AS progress_at,
  l.end_kind AS last_attempt_end,
  s.claims AS claims,
  s.attempts_spent AS attempts_spent,
  s.crashes_in_row AS crashes_in_row,
  s.provider_errors AS provider_errors,
  s.redispatches AS redispatches,
  s.releases AS releases,
  s.revision AS revision,
  e.version AS session_version,
  e.leaf_entry_id AS leaf_entry_id,
  ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(s.admitted_at)) * 86400.0) AS pending_for_s
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
LEFT JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id
LEFT JOIN attempts l ON l.session_id = s.session_id AND l.attempt_id = s.last_attempt_id
WHERE s.status <> 'settled'""",
    },
    "v_stuck": {
        "postgresql": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.status AS status,
  CASE WHEN s.held_at IS NOT NULL THEN 'held' WHEN s.status = 'running' AND a.lease_expires_at <= statement_timestamp() THEN 'lease_ended' WHEN s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing' THEN 'blocked' WHEN s.reconcile_at <= statement_timestamp() THEN 'due' ELSE 'claimable' END AS why,
  CASE WHEN s.held_at IS NOT NULL THEN s.held_at WHEN s.status = 'running' AND a.lease_expires_at <= statement_timestamp() THEN a.lease_expires_at WHEN s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing' THEN l.ended_at WHEN s.reconcile_at <= statement_timestamp() THEN s.reconcile_at ELSE s.not_before END AS since,
  s.held_reason AS held_reason,
  a.owner AS owner,
  s.current_attempt_id AS attempt_id,
  s.crashes_in_row AS crashes_in_row,
  s.attempts_spent AS attempts_spent,
  s.admitted_at AS admitted_at,
  CASE WHEN s.held_at IS NOT NULL THEN CAST(EXTRACT(EPOCH FROM (statement_timestamp() - s.held_at)) AS double precision) WHEN s.status = 'running' AND a.lease_expires_at <= statement_timestamp() THEN CAST(EXTRACT(EPOCH FROM (statement_timestamp() - a.lease_expires_at)) AS double precision) WHEN s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing' THEN CAST(EXTRACT(EPOCH FROM (statement_timestamp() - l.ended_at)) AS double precision) WHEN s.reconcile_at <= statement_timestamp() THEN CAST(EXTRACT(EPOCH FROM (statement_timestamp() - s.reconcile_at)) AS double precision) ELSE CAST(EXTRACT(EPOCH FROM (statement_timestamp() - s.not_before)) AS double precision) END AS for_s
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
LEFT JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id
LEFT JOIN attempts l ON l.session_id = s.session_id AND l.attempt_id = s.last_attempt_id
WHERE s.status <> 'settled'
  AND (s.held_at IS NOT NULL OR s.reconcile_at <= statement_timestamp() OR (s.status = 'running' AND a.lease_expires_at <= statement_timestamp()) OR (s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing') OR (s.status = 'queued' AND s.not_before IS NOT NULL AND s.held_at IS NULL AND s.abort_requested_at IS NULL AND (s.deadline_at IS NULL OR s.deadline_at > statement_timestamp()) AND e.origin = 'native' AND s.revision = s.decision_revision AND (s.decision_reason = 'admitted' OR s.decision_detail = 'input_missing' OR e.leaf_moved_version <= s.decision_version) AND NOT EXISTS (SELECT 1 FROM submissions b WHERE b.session_id = s.session_id AND b.ticket < s.ticket AND b.status <> 'settled') AND s.not_before <= statement_timestamp()))""",
        "sqlite": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.status AS status,
  CASE WHEN s.held_at IS NOT NULL THEN 'held' WHEN s.status = 'running' AND a.lease_expires_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') THEN 'lease_ended' WHEN s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing' THEN 'blocked' WHEN s.reconcile_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') THEN 'due' ELSE 'claimable' END AS why,
  CASE WHEN s.held_at IS NOT NULL THEN s.held_at WHEN s.status = 'running' AND a.lease_expires_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') THEN a.lease_expires_at WHEN s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing' THEN l.ended_at WHEN s.reconcile_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') THEN s.reconcile_at ELSE s.not_before END AS since,
  s.held_reason AS held_reason,
  a.owner AS owner,
  s.current_attempt_id AS attempt_id,
  s.crashes_in_row AS crashes_in_row,
  s.attempts_spent AS attempts_spent,
  s.admitted_at AS admitted_at,
  CASE WHEN s.held_at IS NOT NULL THEN ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(s.held_at)) * 86400.0) WHEN s.status = 'running' AND a.lease_expires_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') THEN ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(a.lease_expires_at)) * 86400.0) WHEN s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing' THEN ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(l.ended_at)) * 86400.0) WHEN s.reconcile_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') THEN ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(s.reconcile_at)) * 86400.0) ELSE ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(s.not_before)) * 86400.0) END AS for_s
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
LEFT JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id
LEFT JOIN attempts l ON l.session_id = s.session_id AND l.attempt_id = s.last_attempt_id
WHERE s.status <> 'settled'
  AND (s.held_at IS NOT NULL OR s.reconcile_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') OR (s.status = 'running' AND a.lease_expires_at <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) OR (s.status = 'queued' AND l.end_kind = 'released' AND l.end_reason = 'capability_missing') OR (s.status = 'queued' AND s.not_before IS NOT NULL AND s.held_at IS NULL AND s.abort_requested_at IS NULL AND (s.deadline_at IS NULL OR s.deadline_at > (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) AND e.origin = 'native' AND s.revision = s.decision_revision AND (s.decision_reason = 'admitted' OR s.decision_detail = 'input_missing' OR e.leaf_moved_version <= s.decision_version) AND NOT EXISTS (SELECT 1 FROM submissions b WHERE b.session_id = s.session_id AND b.ticket < s.ticket AND b.status <> 'settled') AND s.not_before <= (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')))""",
    },
    "v_settlements": {
        "postgresql": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.kind AS kind,
  s.outcome AS outcome,
  s.outcome_reason AS reason,
  s.outcome_detail AS detail,
  s.recovered AS recovered,
  s.admitted_at AS admitted_at,
  s.settled_at AS settled_at,
  CAST(EXTRACT(EPOCH FROM (s.settled_at - s.admitted_at)) AS double precision) AS took_s,
  s.answer_entry_id AS answer_entry_id,
  s.settlement_entry_id AS settlement_entry_id,
  s.claims AS claims,
  s.attempts_spent AS attempts_spent,
  s.crashes_in_row AS crashes_in_row,
  s.provider_errors AS provider_errors,
  s.redispatches AS redispatches,
  s.acknowledged_at AS acknowledged_at,
  (s.late_evidence IS NOT NULL) AS has_late_evidence,
  to_char(s.settled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24') AS settled_hour,
  to_char(s.settled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS settled_day
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
WHERE s.status = 'settled'""",
        "sqlite": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.kind AS kind,
  s.outcome AS outcome,
  s.outcome_reason AS reason,
  s.outcome_detail AS detail,
  s.recovered AS recovered,
  s.admitted_at AS admitted_at,
  s.settled_at AS settled_at,
  ((julianday(s.settled_at) - julianday(s.admitted_at)) * 86400.0) AS took_s,
  s.answer_entry_id AS answer_entry_id,
  s.settlement_entry_id AS settlement_entry_id,
  s.claims AS claims,
  s.attempts_spent AS attempts_spent,
  s.crashes_in_row AS crashes_in_row,
  s.provider_errors AS provider_errors,
  s.redispatches AS redispatches,
  s.acknowledged_at AS acknowledged_at,
  (s.late_evidence IS NOT NULL) AS has_late_evidence,
  substr(s.settled_at, 1, 13) AS settled_hour,
  substr(s.settled_at, 1, 10) AS settled_day
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
WHERE s.status = 'settled'""",
    },
    "v_decisions": {
        "postgresql": """\
SELECT
  d.session_id AS session_id,
  d.submission_id AS submission_id,
  d.number AS number,
  d.decided_at AS decided_at,
  d.pass_id AS pass_id,
  d.decided_by AS decided_by,
  d.action AS action,
  d.advice AS advice,
  d.reason AS reason,
  d.gate AS gate,
  d.state AS state,
  d.detail AS detail,
  d.outcome AS outcome,
  d.attempt_id AS attempt_id,
  d.attempt_end AS attempt_end,
  d.evidence AS evidence,
  (CAST(d.plan AS json) ->> 'mode') AS plan_mode,
  d.not_before AS not_before,
  d.reconcile_at AS reconcile_at,
  d.session_version AS session_version,
  d.revision AS revision,
  d.note AS note
FROM decisions d""",
        "sqlite": """\
SELECT
  d.session_id AS session_id,
  d.submission_id AS submission_id,
  d.number AS number,
  d.decided_at AS decided_at,
  d.pass_id AS pass_id,
  d.decided_by AS decided_by,
  d.action AS action,
  d.advice AS advice,
  d.reason AS reason,
  d.gate AS gate,
  d.state AS state,
  d.detail AS detail,
  d.outcome AS outcome,
  d.attempt_id AS attempt_id,
  d.attempt_end AS attempt_end,
  d.evidence AS evidence,
  (CASE WHEN instr(d.plan, '"mode":"') > 0 THEN substr(substr(d.plan, instr(d.plan, '"mode":"') + 8), 1, instr(substr(d.plan, instr(d.plan, '"mode":"') + 8), '"') - 1) END) AS plan_mode,
  d.not_before AS not_before,
  d.reconcile_at AS reconcile_at,
  d.session_version AS session_version,
  d.revision AS revision,
  d.note AS note
FROM decisions d""",
    },
    "v_attempts": {
        "postgresql": """\
SELECT
  a.session_id AS session_id,
  a.submission_id AS submission_id,
  a.attempt_id AS attempt_id,
  a.number AS number,
  a.owner AS owner,
  a.instance_id AS instance_id,
  a.claimed_at AS claimed_at,
  a.begun_at AS begun_at,
  a.progress_at AS progress_at,
  a.beat_at AS beat_at,
  a.lease_s AS lease_s,
  a.lease_expires_at AS lease_expires_at,
  a.ended_at AS ended_at,
  a.end_kind AS end_kind,
  a.end_reason AS end_reason,
  a.retryable AS retryable,
  CAST(EXTRACT(EPOCH FROM (a.ended_at - a.claimed_at)) AS double precision) AS lasted_s,
  a.spent_redispatch AS spent_redispatch,
  a.spent_sub_turn AS spent_sub_turn,
  a.sub_turn_added AS sub_turn_added,
  CAST(EXTRACT(EPOCH FROM (COALESCE(a.ended_at, statement_timestamp()) - COALESCE(a.progress_at, a.claimed_at))) AS double precision) AS since_progress_s
FROM attempts a""",
        "sqlite": """\
SELECT
  a.session_id AS session_id,
  a.submission_id AS submission_id,
  a.attempt_id AS attempt_id,
  a.number AS number,
  a.owner AS owner,
  a.instance_id AS instance_id,
  a.claimed_at AS claimed_at,
  a.begun_at AS begun_at,
  a.progress_at AS progress_at,
  a.beat_at AS beat_at,
  a.lease_s AS lease_s,
  a.lease_expires_at AS lease_expires_at,
  a.ended_at AS ended_at,
  a.end_kind AS end_kind,
  a.end_reason AS end_reason,
  a.retryable AS retryable,
  ((julianday(a.ended_at) - julianday(a.claimed_at)) * 86400.0) AS lasted_s,
  a.spent_redispatch AS spent_redispatch,
  a.spent_sub_turn AS spent_sub_turn,
  a.sub_turn_added AS sub_turn_added,
  ((julianday(COALESCE(a.ended_at, (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'))) - julianday(COALESCE(a.progress_at, a.claimed_at))) * 86400.0) AS since_progress_s
FROM attempts a""",
    },
    "v_passes": {
        "postgresql": """\
SELECT
  p.id AS pass_id,
  p.instance_id AS instance_id,
  p.started_at AS started_at,
  p.finished_at AS finished_at,
  CAST(EXTRACT(EPOCH FROM (p.finished_at - p.started_at)) AS double precision) AS took_s,
  p.scanned AS scanned,
  p.settled_completed AS settled_completed,
  p.settled_failed AS settled_failed,
  p.settled_aborted AS settled_aborted,
  p.requeued AS requeued,
  p.held AS held,
  p.left_alone AS left_alone,
  p.adopted AS adopted,
  p.advised AS advised,
  p.conflicts AS conflicts,
  p.locked AS locked,
  p.failed AS failed
FROM passes p""",
        "sqlite": """\
SELECT
  p.id AS pass_id,
  p.instance_id AS instance_id,
  p.started_at AS started_at,
  p.finished_at AS finished_at,
  ((julianday(p.finished_at) - julianday(p.started_at)) * 86400.0) AS took_s,
  p.scanned AS scanned,
  p.settled_completed AS settled_completed,
  p.settled_failed AS settled_failed,
  p.settled_aborted AS settled_aborted,
  p.requeued AS requeued,
  p.held AS held,
  p.left_alone AS left_alone,
  p.adopted AS adopted,
  p.advised AS advised,
  p.conflicts AS conflicts,
  p.locked AS locked,
  p.failed AS failed
FROM passes p""",
    },
    "v_quarantine": {
        "postgresql": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.status AS status,
  s.held_at AS held_at,
  CAST(EXTRACT(EPOCH FROM (statement_timestamp() - s.held_at)) AS double precision) AS held_for_s,
  s.held_reason AS held_reason,
  s.decision_detail AS detail,
  s.deadline_at AS deadline_at,
  s.admitted_at AS admitted_at,
  e.leaf_entry_id AS leaf_entry_id,
  (SELECT count(*) FROM submissions w WHERE w.session_id = s.session_id AND w.ticket > s.ticket AND w.status <> 'settled') AS waiting_behind
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
WHERE s.held_at IS NOT NULL AND s.status <> 'settled'""",
        "sqlite": """\
SELECT
  s.session_id AS session_id,
  s.id AS submission_id,
  e.origin AS origin,
  s.status AS status,
  s.held_at AS held_at,
  ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(s.held_at)) * 86400.0) AS held_for_s,
  s.held_reason AS held_reason,
  s.decision_detail AS detail,
  s.deadline_at AS deadline_at,
  s.admitted_at AS admitted_at,
  e.leaf_entry_id AS leaf_entry_id,
  (SELECT count(*) FROM submissions w WHERE w.session_id = s.session_id AND w.ticket > s.ticket AND w.status <> 'settled') AS waiting_behind
FROM submissions s
LEFT JOIN sessions e ON e.id = s.session_id
WHERE s.held_at IS NOT NULL AND s.status <> 'settled'""",
    },
    "v_refine": {
        "postgresql": """\
SELECT
  r.subject AS subject,
  r.epoch AS epoch,
  (r.closed_at IS NULL) AS is_open,
  r.baseline_score AS baseline_score,
  r.best_score AS best_score,
  r.used AS used,
  r.budget_max AS budget_max,
  r.budget_floor AS budget_floor,
  (r.budget_max - r.used) AS edits_left,
  (r.used >= r.budget_floor) AS may_stop_early,
  r.opened_at AS opened_at,
  r.closed_at AS closed_at,
  r.rejected_count AS rejected_edits,
  r.buffer_max AS buffer_max,
  r.evicted AS evicted,
  r.steps AS steps
FROM refine_epochs r""",
        "sqlite": """\
SELECT
  r.subject AS subject,
  r.epoch AS epoch,
  (r.closed_at IS NULL) AS is_open,
  r.baseline_score AS baseline_score,
  r.best_score AS best_score,
  r.used AS used,
  r.budget_max AS budget_max,
  r.budget_floor AS budget_floor,
  (r.budget_max - r.used) AS edits_left,
  (r.used >= r.budget_floor) AS may_stop_early,
  r.opened_at AS opened_at,
  r.closed_at AS closed_at,
  r.rejected_count AS rejected_edits,
  r.buffer_max AS buffer_max,
  r.evicted AS evicted,
  r.steps AS steps
FROM refine_epochs r""",
    },
    "v_instances": {
        "postgresql": """\
SELECT
  i.id AS instance_id,
  i.kind AS kind,
  i.owner AS owner,
  i.program_version AS program_version,
  i.host AS host,
  i.pid AS pid,
  i.started_at AS started_at,
  i.beat_at AS beat_at,
  i.beat_s AS beat_s,
  i.stopped_at AS stopped_at,
  CAST(EXTRACT(EPOCH FROM (statement_timestamp() - i.beat_at)) AS double precision) AS quiet_for_s,
  (i.stopped_at IS NULL AND CAST(EXTRACT(EPOCH FROM (statement_timestamp() - i.beat_at)) AS double precision) > 3 * i.beat_s) AS is_silent
FROM instances i""",
        "sqlite": """\
SELECT
  i.id AS instance_id,
  i.kind AS kind,
  i.owner AS owner,
  i.program_version AS program_version,
  i.host AS host,
  i.pid AS pid,
  i.started_at AS started_at,
  i.beat_at AS beat_at,
  i.beat_s AS beat_s,
  i.stopped_at AS stopped_at,
  ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(i.beat_at)) * 86400.0) AS quiet_for_s,
  (i.stopped_at IS NULL AND ((julianday((strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')) - julianday(i.beat_at)) * 86400.0) > 3 * i.beat_s) AS is_silent
FROM instances i""",
    },
    "v_schedule": {
        "postgresql": """\
SELECT
  t.job AS job,
  t.slot_at AS slot_at,
  t.status AS status,
  t.reason AS reason,
  t.instance_id AS instance_id,
  t.taken_at AS taken_at,
  CAST(EXTRACT(EPOCH FROM (t.taken_at - t.slot_at)) AS double precision) AS late_s,
  t.lease_expires_at AS lease_expires_at,
  t.finished_at AS finished_at,
  t.error AS error,
  j.paused_at AS paused_at,
  j.paused_by AS paused_by,
  t.session_id AS session_id,
  t.submission_id AS submission_id,
  t.takes AS takes,
  t.result AS result
FROM schedule_slots t
LEFT JOIN schedule_jobs j ON j.job = t.job""",
        "sqlite": """\
SELECT
  t.job AS job,
  t.slot_at AS slot_at,
  t.status AS status,
  t.reason AS reason,
  t.instance_id AS instance_id,
  t.taken_at AS taken_at,
  ((julianday(t.taken_at) - julianday(t.slot_at)) * 86400.0) AS late_s,
  t.lease_expires_at AS lease_expires_at,
  t.finished_at AS finished_at,
  t.error AS error,
  j.paused_at AS paused_at,
  j.paused_by AS paused_by,
  t.session_id AS session_id,
  t.submission_id AS submission_id,
  t.takes AS takes,
  t.result AS result
FROM schedule_slots t
LEFT JOIN schedule_jobs j ON j.job = t.job""",
    },
    "v_refine_steps": {
        "postgresql": """\
SELECT
  r.subject AS subject,
  r.epoch AS epoch,
  r.number AS number,
  r.step_key AS step_key,
  r.edit_id AS edit_id,
  r.candidate_score AS candidate_score,
  r.verdict AS verdict,
  r.best_score AS best_score,
  r.used AS used,
  r.evicted_edit_id AS evicted_edit_id,
  r.stepped_at AS stepped_at
FROM refine_steps r""",
        "sqlite": """\
SELECT
  r.subject AS subject,
  r.epoch AS epoch,
  r.number AS number,
  r.step_key AS step_key,
  r.edit_id AS edit_id,
  r.candidate_score AS candidate_score,
  r.verdict AS verdict,
  r.best_score AS best_score,
  r.used AS used,
  r.evicted_edit_id AS evicted_edit_id,
  r.stepped_at AS stepped_at
FROM refine_steps r""",
    },
    "v_rejected_edits": {
        "postgresql": """\
SELECT
  r.subject AS subject,
  r.edit_id AS edit_id,
  r.worst_drop AS worst_drop,
  r.count AS count,
  r.first_at AS first_at,
  r.last_at AS last_at,
  r.forgiven_at AS forgiven_at
FROM rejected_edits r""",
        "sqlite": """\
SELECT
  r.subject AS subject,
  r.edit_id AS edit_id,
  r.worst_drop AS worst_drop,
  r.count AS count,
  r.first_at AS first_at,
  r.last_at AS last_at,
  r.forgiven_at AS forgiven_at
FROM rejected_edits r""",
    },
    "v_audit": {
        "postgresql": """\
SELECT
  u.id AS audit_id,
  u.at AS at,
  u.operator AS operator,
  u.verb AS verb,
  u.session_id AS session_id,
  u.submission_id AS submission_id,
  u.subject AS subject,
  u.reason AS reason
FROM audit u""",
        "sqlite": """\
SELECT
  u.id AS audit_id,
  u.at AS at,
  u.operator AS operator,
  u.verb AS verb,
  u.session_id AS session_id,
  u.submission_id AS submission_id,
  u.subject AS subject,
  u.reason AS reason
FROM audit u""",
    },
    "v_clock": {
        "postgresql": """\
SELECT
  statement_timestamp() AS now,
  (statement_timestamp() + interval '-1 hours') AS hour_ago,
  (statement_timestamp() + interval '-24 hours') AS day_ago,
  (statement_timestamp() + interval '-7 days') AS week_ago,
  (statement_timestamp() + interval '-30 days') AS month_ago,
  (statement_timestamp() + interval '+1 hours') AS hour_ahead,
  (statement_timestamp() + interval '+24 hours') AS day_ahead""",
        "sqlite": """\
SELECT
  (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z') AS now,
  (strftime('%Y-%m-%dT%H:%M:%f', 'now', '-1 hours') || '000Z') AS hour_ago,
  (strftime('%Y-%m-%dT%H:%M:%f', 'now', '-24 hours') || '000Z') AS day_ago,
  (strftime('%Y-%m-%dT%H:%M:%f', 'now', '-7 days') || '000Z') AS week_ago,
  (strftime('%Y-%m-%dT%H:%M:%f', 'now', '-30 days') || '000Z') AS month_ago,
  (strftime('%Y-%m-%dT%H:%M:%f', 'now', '+1 hours') || '000Z') AS hour_ahead,
  (strftime('%Y-%m-%dT%H:%M:%f', 'now', '+24 hours') || '000Z') AS day_ahead""",
    },
}


def _statement(sql: str) -> sa.TextClause:
    # A colon would start a parameter.
    return sa.text(sql.replace(":", "\\:"))


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("attempt_id", ID, nullable=False),
        sa.Column("submission_id", ID, nullable=False),
        sa.Column("number", COUNT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("instance_id", ID, nullable=True),
        sa.Column("machine_id", TEXT, nullable=True),
        sa.Column("boot_id", TEXT, nullable=True),
        sa.Column("pid_namespace", TEXT, nullable=True),
        sa.Column("pid", COUNT, nullable=True),
        sa.Column("process_start", TEXT, nullable=True),
        sa.Column("claim_key", TEXT, nullable=True),
        sa.Column("claimed_at", INSTANT, nullable=False),
        sa.Column("lease_s", REAL, nullable=False),
        sa.Column("beat_s", REAL, nullable=False),
        sa.Column("beat_at", INSTANT, nullable=False),
        sa.Column("lease_expires_at", INSTANT, nullable=False),
        sa.Column("begun_at", INSTANT, nullable=True),
        sa.Column("progress_at", INSTANT, nullable=True),
        sa.Column("plan", TEXT, nullable=True),
        sa.Column("spent_redispatch", FLAG, server_default=sa.text("false"), nullable=False),
        sa.Column("spent_sub_turn", FLAG, server_default=sa.text("false"), nullable=False),
        sa.Column("sub_turn_added", sa.Integer(), nullable=True),
        sa.Column("ended_at", INSTANT, nullable=True),
        sa.Column("end_kind", TEXT, nullable=True),
        sa.Column("end_digest", TEXT, nullable=True),
        sa.Column("end_reason", TEXT, nullable=True),
        sa.Column("error", TEXT, nullable=True),
        sa.Column("retryable", FLAG, nullable=True),
        sa.Column("provider_error_counted", FLAG, server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint(
            "end_kind IS NULL OR end_kind IN ('settled', 'failed', 'released', 'parked', 'crashed', 'stalled', 'overrun', 'held')",
            name=op.f("ck_attempts_end_kind"),
        ),
        sa.CheckConstraint("(ended_at IS NULL) = (end_kind IS NULL)", name=op.f("ck_attempts_ended_at")),
        sa.PrimaryKeyConstraint("session_id", "attempt_id", name=op.f("pk_attempts")),
        sa.UniqueConstraint(
            "session_id", "submission_id", "number", name=op.f("uq_attempts_session_id_submission_id_number")
        ),
        postgresql_with={
            "fillfactor": "80",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_analyze_scale_factor": "0.02",
        },
        sqlite_strict=True,
    )
    op.create_index(
        "ix_attempts_claim_key",
        "attempts",
        ["claim_key"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL AND claim_key IS NOT NULL"),
        postgresql_where=sa.text("ended_at IS NULL AND claim_key IS NOT NULL"),
    )
    op.create_index(
        "uq_attempts_live",
        "attempts",
        ["session_id", "submission_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("operator", TEXT, nullable=False),
        sa.Column("verb", TEXT, nullable=False),
        sa.Column("session_id", ID, nullable=True),
        sa.Column("submission_id", ID, nullable=True),
        sa.Column("subject", ID, nullable=True),
        sa.Column("parameters", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("result", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_strict=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("submission_id", ID, nullable=False),
        sa.Column("number", COUNT, nullable=False),
        sa.Column("decided_at", INSTANT, nullable=False),
        sa.Column("pass_id", ID, nullable=True),
        sa.Column("decided_by", TEXT, nullable=True),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("advice", TEXT, nullable=True),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("gate", sa.Integer(), nullable=True),
        sa.Column("state", TEXT, nullable=True),
        sa.Column("detail", TEXT, nullable=True),
        sa.Column("outcome", TEXT, nullable=True),
        sa.Column("attempt_id", ID, nullable=True),
        sa.Column("attempt_end", TEXT, nullable=True),
        sa.Column("evidence", TEXT, nullable=True),
        sa.Column("inspection", TEXT, nullable=True),
        sa.Column("plan", TEXT, nullable=True),
        sa.Column("not_before", INSTANT, nullable=True),
        sa.Column("reconcile_at", INSTANT, nullable=True),
        sa.Column("session_version", COUNT, nullable=False),
        sa.Column("revision", COUNT, nullable=False),
        sa.Column("note", TEXT, nullable=True),
        sa.CheckConstraint(
            "action IN ('wait', 'adopt', 'settle', 'requeue', 'hold', 'advise', 'admit', 'retry', 'release', 'abort', 'resolve', 'move_leaf', 'park', 'unpark', 'fail', 'import')",
            name=op.f("ck_decisions_action"),
        ),
        sa.PrimaryKeyConstraint("session_id", "submission_id", "number", name=op.f("pk_decisions")),
        sqlite_strict=True,
    )
    op.create_index(
        "ix_decisions_decided_at", "decisions", ["decided_at", "session_id", "submission_id", "number"], unique=False
    )
    op.create_index(
        "ix_decisions_pass_id",
        "decisions",
        ["pass_id"],
        unique=False,
        sqlite_where=sa.text("pass_id IS NOT NULL"),
        postgresql_where=sa.text("pass_id IS NOT NULL"),
    )
    op.create_table(
        "entries",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("seq", COUNT, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("parent_id", ID, nullable=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=True),
        sa.Column("submission_id", ID, nullable=True),
        sa.Column("attempt_id", ID, nullable=True),
        sa.Column("stop_reason", TEXT, nullable=True),
        sa.Column("tool_call_ids", TEXT, nullable=True),
        sa.Column("tool_call_id", TEXT, nullable=True),
        sa.Column("content", TEXT, server_default=sa.text("'text'"), nullable=False),
        sa.Column("is_synthetic", FLAG, server_default=sa.text("false"), nullable=False),
        sa.Column("is_sidechain", FLAG, server_default=sa.text("false"), nullable=False),
        sa.Column("ends_turn", FLAG, server_default=sa.text("false"), nullable=False),
        sa.Column("error_retryable", FLAG, nullable=True),
        sa.Column("stopped_by", TEXT, nullable=True),
        sa.Column("starts_logged", FLAG, server_default=sa.text("false"), nullable=False),
        sa.Column("write_ahead", FLAG, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint("content IN ('text', 'reasoning', 'none')", name=op.f("ck_entries_content")),
        sa.CheckConstraint(
            "kind <> 'submission_settled' OR submission_id IS NOT NULL",
            name=op.f("ck_entries_settlement_names_submission"),
        ),
        sa.PrimaryKeyConstraint("session_id", "seq", name=op.f("pk_entries")),
        sa.UniqueConstraint("session_id", "id", name=op.f("uq_entries_session_id_id")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_entries_input",
        "entries",
        ["session_id", "submission_id", "seq"],
        unique=False,
        sqlite_where=sa.text("kind = 'message' AND role IN ('user', 'signal') AND submission_id IS NOT NULL"),
        postgresql_where=sa.text("kind = 'message' AND role IN ('user', 'signal') AND submission_id IS NOT NULL"),
    )
    op.create_index("ix_entries_parent", "entries", ["session_id", "parent_id"], unique=False)
    op.create_index(
        "uq_entries_settlement",
        "entries",
        ["session_id", "submission_id"],
        unique=True,
        sqlite_where=sa.text("kind = 'submission_settled'"),
        postgresql_where=sa.text("kind = 'submission_settled'"),
    )
    op.create_table(
        "entry_payloads",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("entry_id", ID, nullable=False),
        sa.Column("payload", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "entry_id", name=op.f("pk_entry_payloads")),
        sqlite_strict=True,
    )
    op.create_table(
        "instances",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("program_version", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=True),
        sa.Column("machine_id", TEXT, nullable=True),
        sa.Column("boot_id", TEXT, nullable=True),
        sa.Column("pid_namespace", TEXT, nullable=True),
        sa.Column("pid", COUNT, nullable=True),
        sa.Column("process_start", TEXT, nullable=True),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("beat_at", INSTANT, nullable=False),
        sa.Column("beat_s", REAL, nullable=False),
        sa.Column("stopped_at", INSTANT, nullable=True),
        sa.CheckConstraint("kind IN ('daemon', 'runner', 'once')", name=op.f("ck_instances_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instances")),
        postgresql_with={
            "fillfactor": "80",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_analyze_scale_factor": "0.02",
        },
        sqlite_strict=True,
    )
    op.create_index("ix_instances_beat_at", "instances", ["beat_at"], unique=False)
    op.create_table(
        "operation_items",
        sa.Column("operation_id", ID, nullable=False),
        sa.Column("number", COUNT, nullable=False),
        sa.Column("session_id", ID, nullable=False),
        sa.Column("submission_id", ID, nullable=True),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("result", TEXT, nullable=True),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'done', 'already', 'refused')", name=op.f("ck_operation_items_status")
        ),
        sa.PrimaryKeyConstraint("operation_id", "number", name=op.f("pk_operation_items")),
        sqlite_strict=True,
    )
    op.create_index(
        "ix_operation_items_pending",
        "operation_items",
        ["operation_id", "number"],
        unique=False,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "operations",
        sa.Column("id", ID, nullable=False),
        sa.Column("verb", TEXT, nullable=False),
        sa.Column("parameters", TEXT, nullable=False),
        sa.Column("filter", TEXT, nullable=True),
        sa.Column("operator", TEXT, nullable=True),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.Column("total", COUNT, nullable=False),
        sa.CheckConstraint("status IN ('open', 'done', 'cancelled')", name=op.f("ck_operations_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
        sqlite_strict=True,
    )
    op.create_table(
        "passes",
        sa.Column("id", ID, nullable=False),
        sa.Column("instance_id", ID, nullable=True),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("finished_at", INSTANT, nullable=False),
        sa.Column("scanned", COUNT, nullable=False),
        sa.Column("settled_completed", COUNT, nullable=False),
        sa.Column("settled_failed", COUNT, nullable=False),
        sa.Column("settled_aborted", COUNT, nullable=False),
        sa.Column("requeued", COUNT, nullable=False),
        sa.Column("held", COUNT, nullable=False),
        sa.Column("left_alone", COUNT, nullable=False),
        sa.Column("adopted", COUNT, nullable=False),
        sa.Column("advised", COUNT, nullable=False),
        sa.Column("conflicts", COUNT, nullable=False),
        sa.Column("locked", COUNT, nullable=False),
        sa.Column("failed", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_passes")),
        sqlite_strict=True,
    )
    op.create_index("ix_passes_started_at", "passes", ["started_at"], unique=False)
    op.create_table(
        "refine_epochs",
        sa.Column("subject", ID, nullable=False),
        sa.Column("epoch", COUNT, nullable=False),
        sa.Column("baseline_score", REAL, nullable=False),
        sa.Column("best_score", REAL, nullable=False),
        sa.Column("budget_max", sa.Integer(), nullable=False),
        sa.Column("budget_floor", sa.Integer(), nullable=False),
        sa.Column("used", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("steps", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("rejected_count", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("buffer_max", COUNT, nullable=True),
        sa.Column("evicted", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("opened_at", INSTANT, nullable=False),
        sa.Column("closed_at", INSTANT, nullable=True),
        sa.CheckConstraint("best_score >= baseline_score", name=op.f("ck_refine_epochs_best_rises")),
        sa.CheckConstraint(
            "epoch >= 1 AND steps >= used AND rejected_count >= 0 AND evicted >= 0 AND (buffer_max IS NULL OR (buffer_max >= 0 AND rejected_count <= buffer_max))",
            name=op.f("ck_refine_epochs_counts"),
        ),
        sa.CheckConstraint(
            "used >= 0 AND used <= budget_max AND budget_floor >= 0 AND budget_floor <= budget_max",
            name=op.f("ck_refine_epochs_budget"),
        ),
        sa.PrimaryKeyConstraint("subject", "epoch", name=op.f("pk_refine_epochs")),
        postgresql_with={
            "fillfactor": "80",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_analyze_scale_factor": "0.02",
        },
        sqlite_strict=True,
    )
    op.create_index(
        "uq_refine_epochs_open",
        "refine_epochs",
        ["subject"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "refine_steps",
        sa.Column("subject", ID, nullable=False),
        sa.Column("epoch", COUNT, nullable=False),
        sa.Column("number", COUNT, nullable=False),
        sa.Column("step_key", ID, nullable=False),
        sa.Column("edit_id", ID, nullable=False),
        sa.Column("candidate_score", REAL, nullable=False),
        sa.Column("verdict", TEXT, nullable=False),
        sa.Column("best_score", REAL, nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("evicted_edit_id", ID, nullable=True),
        sa.Column("stepped_at", INSTANT, nullable=False),
        sa.CheckConstraint(
            "verdict IN ('accepted', 'rejected', 'skipped_rejected', 'budget_exhausted')",
            name=op.f("ck_refine_steps_verdict"),
        ),
        sa.PrimaryKeyConstraint("subject", "epoch", "number", name=op.f("pk_refine_steps")),
        sa.UniqueConstraint("subject", "step_key", name=op.f("uq_refine_steps_subject_step_key")),
        sqlite_strict=True,
    )
    op.create_table(
        "rejected_edits",
        sa.Column("subject", ID, nullable=False),
        sa.Column("edit_id", ID, nullable=False),
        sa.Column("worst_drop", REAL, nullable=False),
        sa.Column("count", COUNT, nullable=False),
        sa.Column("first_at", INSTANT, nullable=False),
        sa.Column("last_at", INSTANT, nullable=False),
        sa.Column("forgiven_at", INSTANT, nullable=True),
        sa.CheckConstraint("worst_drop >= 0 AND count >= 1", name=op.f("ck_rejected_edits_worst_drop")),
        sa.PrimaryKeyConstraint("subject", "edit_id", name=op.f("pk_rejected_edits")),
        sqlite_strict=True,
    )
    op.create_index(
        "ix_rejected_edits_mildest",
        "rejected_edits",
        ["subject", "worst_drop", "last_at", "edit_id"],
        unique=False,
        sqlite_where=sa.text("forgiven_at IS NULL"),
        postgresql_where=sa.text("forgiven_at IS NULL"),
    )
    op.create_table(
        "schedule_jobs",
        sa.Column("job", ID, nullable=False),
        sa.Column("paused_at", INSTANT, nullable=True),
        sa.Column("paused_by", TEXT, nullable=True),
        sa.Column("looked_until", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_schedule_jobs")),
        sqlite_strict=True,
    )
    op.create_table(
        "schedule_slots",
        sa.Column("job", ID, nullable=False),
        sa.Column("slot_at", INSTANT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("instance_id", ID, nullable=True),
        sa.Column("taken_at", INSTANT, nullable=False),
        sa.Column("lease_expires_at", INSTANT, nullable=True),
        sa.Column("finished_at", INSTANT, nullable=True),
        sa.Column("error", TEXT, nullable=True),
        sa.Column("session_id", ID, nullable=True),
        sa.Column("submission_id", ID, nullable=True),
        sa.Column("takes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("result", TEXT, nullable=True),
        sa.CheckConstraint("(status = 'taken') = (finished_at IS NULL)", name=op.f("ck_schedule_slots_finished_at")),
        sa.CheckConstraint("status IN ('taken', 'done', 'skipped', 'failed')", name=op.f("ck_schedule_slots_status")),
        sa.PrimaryKeyConstraint("job", "slot_at", name=op.f("pk_schedule_slots")),
        sqlite_strict=True,
    )
    op.create_index("ix_schedule_slots_slot_at", "schedule_slots", ["slot_at"], unique=False)
    op.create_index(
        "ix_schedule_slots_taken",
        "schedule_slots",
        ["lease_expires_at"],
        unique=False,
        sqlite_where=sa.text("status = 'taken'"),
        postgresql_where=sa.text("status = 'taken'"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", ID, nullable=False),
        sa.Column("origin", TEXT, nullable=False),
        sa.Column("version", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("leaf_entry_id", ID, nullable=True),
        sa.Column("leaf_known_empty", FLAG, server_default=sa.text("false"), nullable=False),
        sa.Column("last_seq", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("last_ticket", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("leaf_moved_at", INSTANT, nullable=True),
        sa.Column("leaf_moved_version", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("source_id", ID, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.CheckConstraint("origin IN ('native', 'mirrored')", name=op.f("ck_sessions_origin")),
        sa.CheckConstraint("version >= 0 AND last_seq >= 0 AND last_ticket >= 0", name=op.f("ck_sessions_counts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        postgresql_with={
            "fillfactor": "80",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_analyze_scale_factor": "0.02",
        },
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_sessions_source_id",
        "sessions",
        ["source_id"],
        unique=False,
        sqlite_where=sa.text("source_id IS NOT NULL"),
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )
    op.create_table(
        "settled_ids",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("submission_id", ID, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("content_digest", TEXT, nullable=False),
        sa.Column("ticket", COUNT, nullable=False),
        sa.Column("claims", COUNT, nullable=False),
        sa.Column("settled_at", INSTANT, nullable=False),
        sa.Column("pruned_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "submission_id", name=op.f("pk_settled_ids")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sources",
        sa.Column("id", ID, nullable=False),
        sa.Column("format", TEXT, nullable=False),
        sa.Column("format_version", TEXT, nullable=True),
        sa.Column("locator", TEXT, nullable=False),
        sa.Column("bytes_read", COUNT, nullable=False),
        sa.Column("lines_read", COUNT, nullable=False),
        sa.Column("content_digest", TEXT, nullable=True),
        sa.Column("quiet_since", INSTANT, nullable=False),
        sa.Column("first_import_at", INSTANT, nullable=False),
        sa.Column("last_import_at", INSTANT, nullable=False),
        sa.Column("owned_at", INSTANT, nullable=True),
        sa.Column("problems", TEXT, nullable=True),
        sa.Column("importing_since", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sources")),
        sa.UniqueConstraint("locator", "format", name=op.f("uq_sources_locator_format")),
        sqlite_strict=True,
    )
    op.create_table(
        "submissions",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("revision", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("ticket", COUNT, nullable=False),
        sa.Column("kind", TEXT, server_default=sa.text("'prompt'"), nullable=False),
        sa.Column("content_digest", TEXT, nullable=False),
        sa.Column("entity_hints", TEXT, nullable=True),
        sa.Column("fact_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("limits", TEXT, nullable=True),
        sa.Column("admitted_at", INSTANT, nullable=False),
        sa.Column("deadline_at", INSTANT, nullable=True),
        sa.Column("reconcile_at", INSTANT, nullable=True),
        sa.Column("not_before", INSTANT, nullable=True),
        sa.Column("current_attempt_id", ID, nullable=True),
        sa.Column("last_attempt_id", ID, nullable=True),
        sa.Column("abort_requested_at", INSTANT, nullable=True),
        sa.Column("abort_reason", TEXT, nullable=True),
        sa.Column("held_at", INSTANT, nullable=True),
        sa.Column("held_reason", TEXT, nullable=True),
        sa.Column("hold_released_reason", TEXT, nullable=True),
        sa.Column("parked_at", INSTANT, nullable=True),
        sa.Column("parked_until", INSTANT, nullable=True),
        sa.Column("park_reason", TEXT, nullable=True),
        sa.Column("pending_calls", TEXT, nullable=True),
        sa.Column("unparked_at", INSTANT, nullable=True),
        sa.Column("claims", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("attempts_spent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts_begun", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts_granted", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("crashes_in_row", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("provider_errors", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("redispatches", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("redispatches_granted", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("releases", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("parks", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("sub_turns_spent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("sub_turn_facts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("decision_count", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("decision_action", TEXT, nullable=True),
        sa.Column("decision_reason", TEXT, nullable=True),
        sa.Column("decision_detail", TEXT, nullable=True),
        sa.Column("decision_revision", COUNT, nullable=True),
        sa.Column("decision_version", COUNT, nullable=True),
        sa.Column("plan", TEXT, nullable=True),
        sa.Column("outcome", TEXT, nullable=True),
        sa.Column("outcome_reason", TEXT, nullable=True),
        sa.Column("outcome_detail", TEXT, nullable=True),
        sa.Column("answer_entry_id", ID, nullable=True),
        sa.Column("settlement_entry_id", ID, nullable=True),
        sa.Column("recovered", FLAG, nullable=True),
        sa.Column("error", TEXT, nullable=True),
        sa.Column("settled_at", INSTANT, nullable=True),
        sa.Column("acknowledged_at", INSTANT, nullable=True),
        sa.Column("late_evidence", TEXT, nullable=True),
        sa.CheckConstraint(
            "(status = 'running') = (current_attempt_id IS NOT NULL)", name=op.f("ck_submissions_running_has_attempt")
        ),
        sa.CheckConstraint(
            "(status = 'settled') = (outcome IS NOT NULL) AND (outcome IS NULL OR outcome IN ('completed', 'failed', 'aborted'))",
            name=op.f("ck_submissions_outcome"),
        ),
        sa.CheckConstraint("(status = 'settled') = (settled_at IS NOT NULL)", name=op.f("ck_submissions_settled_at")),
        sa.CheckConstraint(
            "(status = 'waiting') = (parked_until IS NOT NULL)", name=op.f("ck_submissions_waiting_has_end")
        ),
        sa.CheckConstraint(
            "held_at IS NULL OR status IN ('queued', 'waiting')", name=op.f("ck_submissions_held_is_idle")
        ),
        sa.CheckConstraint(
            "not_before IS NULL OR (status = 'queued' AND held_at IS NULL AND abort_requested_at IS NULL)",
            name=op.f("ck_submissions_claimable"),
        ),
        sa.CheckConstraint(
            "status <> 'running' OR reconcile_at IS NOT NULL", name=op.f("ck_submissions_running_is_due")
        ),
        sa.CheckConstraint("status <> 'settled' OR reconcile_at IS NULL", name=op.f("ck_submissions_settled_not_due")),
        sa.CheckConstraint("status IN ('queued', 'running', 'waiting', 'settled')", name=op.f("ck_submissions_status")),
        sa.CheckConstraint("(held_at IS NULL) = (held_reason IS NULL)", name=op.f("ck_submissions_held_reason")),
        sa.CheckConstraint(
            "claims >= 0 AND attempts_spent >= 0 AND attempts_begun >= 0 AND crashes_in_row >= 0 AND provider_errors >= 0 AND redispatches >= 0 AND releases >= 0 AND parks >= 0 AND sub_turns_spent >= 0 AND fact_count >= 0",
            name=op.f("ck_submissions_counters"),
        ),
        sa.PrimaryKeyConstraint("session_id", "id", name=op.f("pk_submissions")),
        sa.UniqueConstraint("session_id", "ticket", name=op.f("uq_submissions_session_id_ticket")),
        postgresql_with={
            "fillfactor": "80",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_analyze_scale_factor": "0.02",
        },
        sqlite_strict=True,
    )
    op.create_index(
        "ix_submissions_claimable",
        "submissions",
        ["not_before", "session_id", "ticket"],
        unique=False,
        sqlite_where=sa.text("status = 'queued' AND not_before IS NOT NULL"),
        postgresql_where=sa.text("status = 'queued' AND not_before IS NOT NULL"),
    )
    op.create_index(
        "ix_submissions_due",
        "submissions",
        ["reconcile_at", "session_id", "id"],
        unique=False,
        sqlite_where=sa.text("status <> 'settled'"),
        postgresql_where=sa.text("status <> 'settled'"),
    )
    op.create_index(
        "ix_submissions_held",
        "submissions",
        ["held_at"],
        unique=False,
        sqlite_where=sa.text("held_at IS NOT NULL AND status <> 'settled'"),
        postgresql_where=sa.text("held_at IS NOT NULL AND status <> 'settled'"),
    )
    op.create_index(
        "ix_submissions_settled",
        "submissions",
        ["settled_at", "session_id", "id"],
        unique=False,
        sqlite_where=sa.text("status = 'settled'"),
        postgresql_where=sa.text("status = 'settled'"),
    )
    op.create_index(
        "ix_submissions_unacknowledged",
        "submissions",
        ["settled_at", "session_id", "id"],
        unique=False,
        sqlite_where=sa.text("status = 'settled' AND recovered AND acknowledged_at IS NULL"),
        postgresql_where=sa.text("status = 'settled' AND recovered AND acknowledged_at IS NULL"),
    )
    op.create_index(
        "ix_submissions_unsettled",
        "submissions",
        ["session_id", "ticket"],
        unique=False,
        sqlite_where=sa.text("status <> 'settled'"),
        postgresql_where=sa.text("status <> 'settled'"),
    )
    op.create_index(
        "uq_submissions_live",
        "submissions",
        ["session_id"],
        unique=True,
        sqlite_where=sa.text("status IN ('running', 'waiting')"),
        postgresql_where=sa.text("status IN ('running', 'waiting')"),
    )
    op.create_table(
        "superseded_payloads",
        sa.Column("session_id", ID, nullable=False),
        sa.Column("entry_id", ID, nullable=False),
        sa.Column("number", COUNT, nullable=False),
        sa.Column("superseded_at", INSTANT, nullable=False),
        sa.Column("columns", TEXT, nullable=False),
        sa.Column("payload", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("session_id", "entry_id", "number", name=op.f("pk_superseded_payloads")),
        sqlite_strict=True,
    )

    dialect = op.get_context().dialect.name
    for name, statements in VIEWS.items():
        op.execute(_statement(f"CREATE VIEW {name} AS\n{statements[dialect]}"))


def downgrade() -> None:
    for name in reversed(VIEWS):
        op.execute(_statement(f"DROP VIEW {name}"))
    op.drop_table("superseded_payloads")
    op.drop_table("submissions")
    op.drop_table("sources")
    op.drop_table("settled_ids")
    op.drop_table("sessions")
    op.drop_table("schedule_slots")
    op.drop_table("schedule_jobs")
    op.drop_table("rejected_edits")
    op.drop_table("refine_steps")
    op.drop_table("refine_epochs")
    op.drop_table("passes")
    op.drop_table("operations")
    op.drop_table("operation_items")
    op.drop_table("instances")
    op.drop_table("entry_payloads")
    op.drop_table("entries")
    op.drop_table("decisions")
    op.drop_table("audit")
    op.drop_table("attempts")


def would_lose(conn: sa.Connection) -> list[str]:
    """Return the tables that hold what a downgrade would drop."""
    tables = (
        "attempts",
        "audit",
        "decisions",
        "entries",
        "entry_payloads",
        "instances",
        "operation_items",
        "operations",
        "passes",
        "refine_epochs",
        "refine_steps",
        "rejected_edits",
        "schedule_jobs",
        "schedule_slots",
        "sessions",
        "settled_ids",
        "sources",
        "submissions",
        "superseded_payloads",
    )
    found = ((name, conn.execute(sa.text(f"SELECT EXISTS (SELECT 1 FROM {name})"))) for name in tables)
    return [name for name, there in found if there.scalar()]
