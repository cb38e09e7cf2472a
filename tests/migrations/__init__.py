"""The migrations, and programs of other heads beside the present one."""
