"""The process through which programs reach hosts outside: a proxy for the hosts that the service lists."""
