-- leased: what a job needs of its lease to go back where it was.
-- params  seq
SELECT l.class_id, l.epoch, l.eligible_at, j.task, j.tenant FROM lease l JOIN job j ON j.seq = l.seq WHERE l.seq = :seq;
