"""What a round does besides passes, a module each: retention, layout, the sweep, old commits."""
