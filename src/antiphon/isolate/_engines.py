"""Run independent jobs by an engine: in processes of this computer, on a Ray or on a Dask cluster.

A job is a number and the arguments of a function. An engine is a function in ENGINES; it yields each number with what
the function returned, or with the AntiphonError that it raised, in any order. If a worker is killed, its jobs are given
to other workers, at most RETRIES times. The engine does not change the results, only where they are computed. Clusters
need a function of a module, and arguments and results that can be pickled.

    processes[:N]              N processes here (default: one per core); this one where CAN_ISOLATE is false
    ray[:ADDRESS]              the cluster at this address, or one that is started here (extra `ray`)
    dask[:ADDRESS]             the scheduler at this address, or one that is started here (extra `dask`)

Sweeps, reproduced tables and the zoo run so. The candidates of one `tune` are not independent, as times so far stop
slower ones: select/pool.py gives them to `as_done`, the pool of processes behind "processes" here.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

from antiphon.errors import AntiphonError, Invalid, Missing, NotFound, unknown
from antiphon.isolate._child import Send
from antiphon.isolate._pool import as_done, available_processors
from antiphon.isolate._process import Ended, Lost, PoolTerms

RETRIES = 3  # of a job whose worker was killed
CONNECT_SECONDS = 10.0  # for a cluster to answer
Work = Callable[..., Any]
Jobs = Mapping[int, tuple[Any, ...]]  # number -> arguments


def run_jobs(work: Work, jobs: Jobs, engine: str) -> Iterator[tuple[int, Any]]:
    """Yield the result of every job by an engine, such as "processes:4" or "dask:tcp://host:8786"."""
    check_engine(engine)
    name, _, address = engine.partition(":")
    if jobs:
        yield from ENGINES[name](work, jobs, address)


def run_each(work: Work, arguments: Iterable[tuple[Any, ...]], engine: str) -> Iterator[Any]:
    """Yield what `work` returns for each tuple of arguments, in their order; raise the first error."""
    jobs, results = dict(enumerate(arguments)), dict[int, Any]()
    order = iter(jobs)
    awaited = next(order, None)
    for number, result in run_jobs(work, jobs, engine):
        results[number] = result
        while awaited in results:
            if isinstance(results[awaited], AntiphonError):
                raise results[awaited]
            yield results.pop(awaited)
            awaited = next(order, None)


def check_engine(engine: str) -> None:
    """Raise Invalid for an engine that does not exist, or no number of processes."""
    name, _, address = engine.partition(":")
    if name not in ENGINES:
        raise unknown("engine", name, list(ENGINES))
    if name == "processes" and address and not (address.isdecimal() and int(address)):
        raise Invalid(f"engine {engine}: expected the number of processes, such as processes:2")


def _result_or_error(work: Work, *arguments: Any) -> Any:
    """Return what the function returns, or the error of this package that it raises."""
    try:
        return work(*arguments)
    except AntiphonError as error:
        return error


def _in_processes(work: Work, jobs: Jobs, address: str) -> Iterator[tuple[int, Any]]:
    """Yield results of N processes here (N = 1: of this process). If one is killed, another does its job."""
    workers = int(address) if address else available_processors()
    if workers == 1:
        for number, arguments in jobs.items():
            yield number, _result_or_error(work, *arguments)
        return
    terms = PoolTerms[int](partial(_run_job, work, jobs), workers=workers, fork=True)
    remaining, loss = list(jobs), Lost("")
    for _ in range(RETRIES + 1):
        with closing(as_done(remaining, terms)) as events:
            remaining = []
            for number, event in events:
                assert isinstance(event, Ended)  # `_run_job` sends nothing before its end
                result = event.result
                if not isinstance(result, Lost):
                    yield number, result
                elif result.died:
                    remaining, loss = [*remaining, number], result
                else:  # an error that is not of this package
                    raise result
        if not remaining:
            return
    jobs_left = "1 job is" if len(remaining) == 1 else f"{len(remaining)} jobs are"
    raise NotFound(f"engine processes: {loss}, {RETRIES + 1} times; {jobs_left} left")


def _run_job(work: Work, jobs: Jobs, number: int, send: Send) -> Any:
    """Run one job in a worker, which has the arguments of all."""
    return work(*jobs[number])


def _on_ray(work: Work, jobs: Jobs, address: str) -> Iterator[tuple[int, Any]]:
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
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_result_or_error)
        pending = {task.remote(work, *arguments): number for number, arguments in jobs.items()}
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


def _ray_result(ray: Any, reference: Any) -> Any:
    """Return the result of a task that has ended; NotFound if its workers were killed too often."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise NotFound(f"engine ray: {_first_line(error)}") from None


def _on_dask(work: Work, jobs: Jobs, address: str) -> Iterator[tuple[int, Any]]:
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
            with _interrupts_blocked():
                client = distributed.Client(address or None, **({} if address else _local_dask()))
        except (OSError, ValueError) as error:
            raise NotFound(f"engine dask: {address}: {_first_line(error)}") from None
        with client:
            # pure=False: Dask hashes no arguments to find equal jobs, as these are distinct
            numbers = {
                client.submit(_result_or_error, work, *arguments, pure=False): number
                for number, arguments in jobs.items()
            }
            try:
                for future in distributed.as_completed(list(numbers)):
                    number, result = numbers.pop(future), future.result()
                    future.release()  # else Dask computes it again if the worker that holds it is killed
                    yield number, result
            except distributed.KilledWorker as error:
                raise NotFound(f"engine dask: {_first_line(error)}") from None


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Delay Ctrl-C, and keep it from the processes that are started: they inherit it, and would print tracebacks."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # else multiprocessing starts it later, and then unblocks Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _local_dask() -> dict[str, Any]:
    """Return the options of a Dask cluster that is started here."""
    return {"n_workers": available_processors(), "threads_per_worker": 1, "dashboard_address": None}


def _first_line(error: BaseException) -> str:
    """Return the first line of an error that has text, else the name of its class."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


ENGINES: Mapping[str, Callable[[Work, Jobs, str], Iterator[tuple[int, Any]]]] = {
    "processes": _in_processes, "ray": _on_ray, "dask": _on_dask,
}  # fmt: skip
