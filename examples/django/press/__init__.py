"""A small printing press: a page that submits jobs and shows how they are getting on."""
