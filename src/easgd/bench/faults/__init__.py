"""What faults cost on this machine: seconds until they are noticed and made up for, and what is lost by them.

Real processes and real signals; every row begins with the number of its case in docs/faults.md. The reference is what
that table promises, or what the same run needs without the fault.
"""

from easgd.bench.faults.measure import rows

__all__ = ["rows"]
