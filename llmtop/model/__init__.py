"""The monitor's data model: snapshots, jobs, alerts, bottlenecks and severities."""
