"""The page that computes, `minibert explain --live`: what it is asked, and what it answers."""
