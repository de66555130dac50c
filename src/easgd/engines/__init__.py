"""Who runs when: the interpreters of one worker loop."""
