"""Templates of `verl-pivot init`: files that run, and that each user changes into their own."""
