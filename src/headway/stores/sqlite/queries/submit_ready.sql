-- submit_ready: make the jobs of one submit eligible, but for those that are delayed.
-- params  first, last
-- holds   the numbers above first up to last were taken by this submit alone
INSERT INTO ready (class_id, park, order_key, seq, eligible_at, epoch, attempts, crashes, tenant)
SELECT j.class_id, '', j.order_key, j.seq, j.submitted_at, 0, 0, 0, CASE c.fair WHEN 1 THEN ifnull(j.tenant, '') END
  FROM job j CROSS JOIN class c ON c.class_id = j.class_id
 WHERE j.seq > :first AND j.seq <= :last AND j.order_key IS NOT NULL;
