//! The reconcile loop: watch, ordered due-queue, backoff, events, clock; deterministic.
