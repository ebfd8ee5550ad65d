-- count: add to the totals of this minute.
-- params  namespace_id, minute, what, count
INSERT INTO tally (namespace_id, minute, what, count) VALUES (:namespace_id, :minute, :what, :count)
    ON CONFLICT DO UPDATE SET count = count + excluded.count;
