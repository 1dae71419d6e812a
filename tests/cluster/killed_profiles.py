"""Kills ``gswarm-tui profile`` at random moments, and checks that nothing is left: run by hand."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time

from tests.cluster.cluster import Cluster
from tests.cluster.namespaces import marked
from tests.cluster.person import user_env
from tests.cluster.running import ClusterError, wait_until

MARK = "GSWARM_TEST_PROFILE"
"""Environment variable of the profiles that a test starts, and of all their processes."""
_LONGEST_S = 12.0


def nothing_is_left(cluster: Cluster) -> None:
    """Wait until no job, no process that a profile started and no folder for reports is left."""

    def left() -> str:
        jobs = cluster.run("squeue --noheader").stdout
        running = [str(process.pid) for process in marked(MARK, str(cluster.root))]
        find = "ls -d /tmp/gswarm-profile-*"
        folders = [cluster[name].run(find, check=False).stdout for name in ("gpu01", "gpu02")]
        return " ".join([jobs, *running, *folders]).strip()

    try:
        wait_until(lambda: not left(), "the end of job, processes and folders", timeout=30)
    except ClusterError as error:
        raise AssertionError(f"{error}: {left()}") from None


def remove_what_is_left(cluster: Cluster) -> None:
    """End jobs and remove folders of a test that failed, so that the next tests don't fail of them, too."""
    cluster.run("squeue --noheader --format=%i | xargs --no-run-if-empty scancel")
    for name in ("gpu01", "gpu02"):
        cluster[name].run("rm -rf /tmp/gswarm-profile-*")


def main() -> int:
    """Kill profiles between their start and their end; return 1 if something is left of one."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.killed_profiles", description=__doc__)
    parser.add_argument("--times", type=int, default=50, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="seed of the moments")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}")
    moments = random.Random(seed)
    with Cluster.up(2, 2) as cluster, cluster.entered():
        env = user_env(cluster) | {MARK: str(cluster.root)}
        words = ["gswarm-tui", "profile", "--nodes=2", "--gres=gpu:1", "--", "sleep", "1"]
        for number in range(options.times):
            popen = subprocess.Popen(words, env=env, cwd=cluster.home, stderr=subprocess.PIPE, text=True)
            delay = moments.uniform(0.2, _LONGEST_S)
            time.sleep(delay)
            popen.kill()
            _, said = popen.communicate()
            last = said.strip().splitlines()[-1:] or ["nothing was printed"]
            print(f"{number + 1}: killed after {delay:.1f} s: {last[0]}", flush=True)
            try:
                nothing_is_left(cluster)
            except AssertionError as error:
                print(error)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
