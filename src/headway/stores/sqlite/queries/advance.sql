-- advance: take the next numbers of the one sequence that orders everything.
-- params  count
-- gives   one row: the last number taken
UPDATE sequence SET last = last + :count RETURNING last;
