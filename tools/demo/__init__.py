"""The demo: real parts in one box, sixty requests, and a count of what became of each."""
