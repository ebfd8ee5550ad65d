"""CPU that a job costs with the policy's features, beside a plain job in the same run."""
