"""Workers as copies of a process that has loaded torch and its op database already: each starts, and is replaced
after a crash, in a fraction of a second instead of several."""
