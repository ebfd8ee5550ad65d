"""A small printing press: a page that submits jobs and shows their progress."""
