-- place_park: note in which park a job waits.
-- params  park, seq
UPDATE job SET park = :park WHERE seq = :seq;
