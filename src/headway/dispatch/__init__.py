"""Claims jobs from a store for one worker, by the plan that the policy makes."""
