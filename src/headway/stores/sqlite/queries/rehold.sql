-- rehold: note anew which limits a lease counts against.
-- params  held, seq
UPDATE lease SET held = :held WHERE seq = :seq;
