"""The peers: an environment each, and how they are started."""
