"""Start the agent from the folder that holds this file: ``python3 -IS …/agent-HASH/gswarm_agent/run.py``.

Any Python 3 can read this file, so that one that is too old reports its version (see ``gswarm_tui.launch``),
and one that was built without libffi's headers that it lacks ``_ctypes``.
"""

import os
import sys

if __name__ == "__main__":
    if sys.version_info < (3, 9):
        os.write(1, ("GSWARM-OLD %d.%d.%d\n" % sys.version_info[:3]).encode())
        sys.exit(64)
    if not any(finder.find_spec("_ctypes", None) for finder in sys.meta_path):
        os.write(1, ("GSWARM-OLD %d.%d.%d without _ctypes\n" % sys.version_info[:3]).encode())
        sys.exit(64)
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from gswarm_agent.__main__ import main

    sys.exit(main())
