"""What the features of the policy cost a job, beside a plain job in the same run."""
