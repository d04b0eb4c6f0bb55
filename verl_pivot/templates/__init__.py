"""Templates of `verl-pivot init`: working files, which users change into their own."""
