"""Where a sweep plans its cells: in processes of this computer, on a Ray or on a Dask cluster.

A cell of a sweep is one plan to make: a `Question` (machine, collective and sizes).

An engine is a function in ENGINES. It takes jobs, that is, numbered arguments of `plan_cell`, and yields each number
with its result, in any order. If a worker is killed, its jobs are given to other workers, at most RETRIES times. The
engine does not change the results, only where they are computed.

    processes[:N]              N processes here (default: one per core)
    ray[:ADDRESS]              the cluster at this address, or one that is started here (extra `ray`)
    dask[:ADDRESS]             the scheduler at this address, or one that is started here (extra `dask`)
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from antiphon.errors import AntiphonError, Invalid, Missing, NotFound, unknown
from antiphon.isolate import available_processors
from antiphon.select.store import Answer, Question, answer

RETRIES = 3  # of a job whose worker was killed
CONNECT_SECONDS = 10.0  # for a cluster to answer
Jobs = Mapping[int, tuple[Question, float]]  # number -> question, CPU seconds of a planner
Result = Answer | AntiphonError  # the error: why there is no plan


def plan_cell(question: Question, budget: float) -> Result:
    """Plan one cell in this process."""
    try:
        planned = answer(question, budget=budget, workers="none")  # no worker processes: this is one already
    except AntiphonError as error:
        return error
    if not planned.complete:  # Ctrl-C ends the sweep, not only this cell
        raise KeyboardInterrupt
    return planned


def run_jobs(jobs: Jobs, engine: str) -> Iterator[tuple[int, Result]]:
    """Yield the result of every job by an engine, such as "processes:4" or "dask:tcp://host:8786"."""
    name, _, address = engine.partition(":")
    if name not in ENGINES:
        raise unknown("engine", name, list(ENGINES))
    if jobs:
        yield from ENGINES[name](jobs, address)


def _in_processes(jobs: Jobs, address: str) -> Iterator[tuple[int, Result]]:
    """Yield results of N processes here (N = 1: of this process). If one is killed, new ones do its jobs."""
    if address and not (address.isdecimal() and int(address)):
        raise Invalid(f"engine processes:{address}: expected the number of processes, such as processes:2")
    workers = int(address) if address else available_processors()
    if workers == 1:
        for number, job in jobs.items():
            yield number, plan_cell(*job)
        return
    remaining = dict(jobs)
    for _ in range(RETRIES + 1):
        with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin_worker) as pool:
            futures: dict[Future[Result], int] = {
                pool.submit(plan_cell, *job): number for number, job in remaining.items()
            }
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
                    del remaining[futures[future]]
            except BrokenProcessPool:  # a process was killed: new ones do the jobs that remain
                continue
            except BaseException:  # Ctrl-C: the pool must not begin jobs that wait
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return  # all are done
    raise NotFound(f"workers were killed {RETRIES + 1} times; {len(remaining)} cells are not planned")


def _begin_worker() -> None:
    """Load what a worker needs before its first job."""
    import antiphon.select.tuner  # noqa: F401


def _on_ray(jobs: Jobs, address: str) -> Iterator[tuple[int, Result]]:
    """Yield results of tasks on Ray, which runs the tasks of a killed worker again."""
    try:
        import ray
    except ImportError:
        raise Missing("engine ray: needs Ray; pip install 'antiphon[ray]'") from None
    is_owner = not ray.is_initialized()  # else the caller's own Ray is used, and left running
    if is_owner:
        _check_address(address)
        try:
            ray.init(address=address or None, include_dashboard=False, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            raise NotFound(f"engine ray: {address or 'no cluster starts here'}: {_first_line(error)}") from None
    try:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(plan_cell)
        pending = {task.remote(*job): number for number, job in jobs.items()}
        while pending:
            done, _ = ray.wait(list(pending))
            for reference in done:
                yield pending.pop(reference), _ray_result(ray, reference)
    finally:
        if is_owner:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Raise NotFound at once if nothing listens at "HOST:PORT" or "ray://HOST:PORT"; Ray tries that for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return  # such as "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: no name of a host
        raise NotFound(f"engine ray: {address}: {_first_line(error)}") from None


def _ray_result(ray: Any, reference: Any) -> Result:
    """Return the result of a task that has ended; NotFound if its workers were killed too often."""
    try:
        result: Result = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise NotFound(f"engine ray: {_first_line(error)}") from None
    return result


def _on_dask(jobs: Jobs, address: str) -> Iterator[tuple[int, Result]]:
    """Yield results of tasks on Dask, which runs the tasks of a killed worker again."""
    try:
        import dask
        import distributed
    except ImportError:
        raise Missing("engine dask: needs Dask; pip install 'antiphon[dask]'") from None
    # no daemons, as these may not start processes, and a planner may need one of its own
    settings = {"distributed.scheduler.allowed-failures": RETRIES, "distributed.worker.daemon": False}
    with dask.config.set(settings):
        try:
            client = distributed.Client(address or None, **({} if address else _local_dask()))
        except (OSError, ValueError) as error:
            raise NotFound(f"engine dask: {address}: {_first_line(error)}") from None
        with client:
            # pure=False: Dask hashes no arguments to find equal jobs, as these are distinct
            numbers = {client.submit(plan_cell, *job, pure=False): number for number, job in jobs.items()}
            try:
                for future in distributed.as_completed(list(numbers)):
                    number, result = numbers.pop(future), future.result()
                    future.release()  # else Dask computes it again if the worker that holds it is killed
                    yield number, result
            except distributed.KilledWorker as error:
                raise NotFound(f"engine dask: {_first_line(error)}") from None


def _local_dask() -> dict[str, Any]:
    """Return the options of a Dask cluster that is started here."""
    return {"n_workers": available_processors(), "threads_per_worker": 1, "dashboard_address": None}


def _first_line(error: BaseException) -> str:
    """Return the first line of an error that has text, else the name of its class."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


ENGINES: Mapping[str, Callable[[Jobs, str], Iterator[tuple[int, Result]]]] = {
    "processes": _in_processes, "ray": _on_ray, "dask": _on_dask,
}  # fmt: skip
