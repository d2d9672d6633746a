"""The nodes that come with boundgen, one file each."""
