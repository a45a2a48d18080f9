"""The core that decides. Standard library only; it never waits, logs or reads a clock.

`machine` is told what happened and when, and answers with what has to be done next. The shell in
`quiesce.supervisor` waits, does it, and tells the machine what came of it. So a whole shutdown can be
played in microseconds, and property tests play thousands.
"""
