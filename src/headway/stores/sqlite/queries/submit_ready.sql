-- submit_ready: make the jobs of one submit eligible, but for those that are delayed.
-- params  first, last
-- holds   the numbers above first up to last were taken by this submit alone
INSERT INTO ready (class_id, order_key, seq, eligible_at, epoch, attempts, crashes)
SELECT class_id, order_key, seq, submitted_at, 0, 0, 0 FROM job WHERE seq > :first AND seq <= :last AND order_key IS NOT NULL;
