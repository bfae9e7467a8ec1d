"""The page that computes, `minibert explain --live`: its requests and answers."""
