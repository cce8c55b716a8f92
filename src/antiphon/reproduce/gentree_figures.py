"""Compare our times with the claims about Figures 8, 9 and 10 in the GenModel paper's text: they print no numbers.

The figures show times of allreduce plans on 12 and 15 servers at one switch, by fan-in: a ring (fan-in 1), two-stage
plans such as 6x2, and CPS, in which all send to each at once. GenModel's terms are alpha (latency), beta (links), gamma
(additions), delta (memory access) and epsilon (incast). (`gentree` explains the abbreviations.) The first arguments of
`row` are name, published figures, ours, and whether they agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from antiphon.cost import prepare
from antiphon.reproduce.gentree_fit import GENMODEL, PLAIN, Cell, least_error
from antiphon.reproduce.gentree_plans import BETA_10G, one_switch, plan, testbed
from antiphon.reproduce.gentree_tables import (
    FIGURE8_ERROR,
    FIGURE10_OPTIMUM,
    FLOAT,
    SERVERS,
    TABLE3,
    TABLE3_PLANS,
    TABLE3_SIZE,
    W_T,
)
from antiphon.reproduce.rows import Row, agreement, claim, is_near, relative_deviations, row

MODELS = {"genmodel": GENMODEL, "alpha-beta-gamma": PLAIN}
# servers -> plans in the figures, by growing fan-in
DRAWN = {12: ("Ring", "2x6", "3x4", "4x3", "6x2", "CPS"), 15: ("Ring", "3x5", "5x3", "CPS")}
SPLIT_SERVERS = 12  # servers of Figures 9 and 10, which split times into terms
ATOL = 1e-9  # seconds (and relative, for the best plan): times that differ by less are equal
BETA_100G = "3.2e-10"  # seconds per float
Terms = Mapping[str, float]


def price_plans(servers: int, model: str, beta: str = BETA_10G) -> dict[str, Terms]:
    """Return the seconds by term of every plan drawn."""
    machine = one_switch(servers, beta)
    terms_by_plan: dict[str, Terms] = {}
    for name in DRAWN[servers]:
        predict = prepare(model, plan(name, machine), machine, profile=testbed())
        terms_by_plan[name] = dict(predict(FLOAT * TABLE3_SIZE).terms)
    return terms_by_plan


def _total_seconds(terms: Terms) -> float:
    return sum(terms.values())


def _best_plan(terms_by_plan: Mapping[str, Terms]) -> str:
    """Return the fastest plan; of equally fast ones that of the smallest fan-in."""
    fastest = min(map(_total_seconds, terms_by_plan.values()))
    return next(name for name, terms in terms_by_plan.items() if _total_seconds(terms) <= fastest * (1 + ATOL))


# ---- Figure 8 ----


def figure8() -> Iterator[Row]:
    """Yield rows on the plan that each model considers best, and on how closely the model can fit the measurements.

    Measured times are those of Table 3 on the same testbed: of ring, CPS, and the plan that GenTree chose. The paper
    only draws the times of other plans, and does not print the parameters that it fitted.
    """
    for servers in DRAWN:
        for model in MODELS:
            terms_by_plan = price_plans(servers, model)
            ours, measured_best = _best_plan(terms_by_plan), TABLE3_PLANS[servers]
            should_agree = model == "genmodel"  # the paper: the other model chooses a wrong plan
            yield row(
                f"{servers} servers, the best by {model}", {"right": should_agree, "best": measured_best},
                {"right": ours == measured_best, "best": ours}, (ours == measured_best) == should_agree,
                note="5.1: " + ", ".join(f"{n} {_total_seconds(terms):.3f} s" for n, terms in terms_by_plan.items()),
                engine=model,
            )  # fmt: skip
    measured = _measured_cells()
    for model, terms in MODELS.items():
        fit = least_error(measured, TABLE3_SIZE, terms, W_T)
        published = FIGURE8_ERROR[model]
        # GenModel can fit as well as published; the other model cannot fit as well as GenModel
        holds = fit.error <= published if model == "genmodel" else FIGURE8_ERROR["genmodel"] < fit.error <= published
        errors = {
            "least_greatest_error": round(fit.error, 4),
            "greatest_error_by_table_5": round(_greatest_error(model), 4),
        }
        yield row(
            f"greatest error of {model}", {"greatest_error": published}, errors, agreement(figures=False, shape=holds),
            deviation="only in words: the parameters are not printed, and the measured times only of these "
            f"{len(measured)} cells",
            note=f"for any parameters, with w_t = {W_T}, {model} errs by at least the first; "
            + ("the published error can be" if model == "genmodel" else "more than GenModel is said to at most"),
            engine="linear program",
            proof=[f"binding: {', '.join(f'{name} on {servers}' for servers, name in fit.binding)}"],
        )  # fmt: skip


def _measured_cells() -> dict[Cell, float]:
    """Return the measured times of Table 3 that Figure 8 draws, too."""
    seconds_by_cell: dict[Cell, float] = {}
    for algorithm in ("Ring", "GenTree", "CPS"):
        for servers, seconds in zip(SERVERS, TABLE3[algorithm], strict=True):
            if servers in DRAWN:
                seconds_by_cell[servers, TABLE3_PLANS[servers] if algorithm == "GenTree" else algorithm] = seconds
    return seconds_by_cell


def _greatest_error(model: str) -> float:
    """Return a model's greatest relative error against the measured cells, with Table 5's parameters at 10 Gbit/s."""
    priced_by_servers = {servers: price_plans(servers, model) for servers in DRAWN}
    measured = _measured_cells()
    ours = [_total_seconds(priced_by_servers[servers][name]) for servers, name in measured]
    return max(map(abs, relative_deviations(ours, list(measured.values()))))


# ---- Figure 10 ----


def figure10() -> Iterator[Row]:
    """Yield rows on the terms on 12 servers at 10 Gbit/s, with Table 5's parameters, and on the claims about them."""
    terms_by_plan = price_plans(SPLIT_SERVERS, "genmodel")
    for name, terms in terms_by_plan.items():
        figures = {"seconds": _total_seconds(terms), **terms}
        rounded = {term: round(seconds, 4) for term, seconds in figures.items()}
        yield row(f"12 servers, {name}", published=None, ours=rounded, ok=True, note="drawn only", engine="genmodel")
    all_terms = list(terms_by_plan.values())
    sums = {round(terms["beta"] + terms["gamma"], 9) for terms in all_terms}
    falls = all(_is_falling(all_terms, term) for term in ("alpha", "delta"))
    rises = _is_falling(all_terms[::-1], "epsilon")
    for text, published, ours in (
        ("bandwidth and computation take the same in all", {"same": True}, {"same": len(sums) == 1}),
        ("with the fan-in memory access and latency fall, incast grows", {"so": True}, {"so": falls and rises}),
        ("the best plan", {"plan": FIGURE10_OPTIMUM}, {"plan": _best_plan(terms_by_plan)}),
    ):
        yield row(text, published, ours, published == ours, note="5.1", engine="genmodel")


def _is_falling(all_terms: list[Terms], term: str) -> bool:
    """Return whether a term never grows along the plans, and is less for the last than for the first."""
    values = [terms[term] for terms in all_terms]
    return all(a >= b - ATOL for a, b in pairwise(values)) and values[0] > values[-1]


# ---- Figure 9 ----

LINKS = {"10 Gbit/s": BETA_10G, "100 Gbit/s": BETA_100G}  # seconds per float
CALCULATION, COMMUNICATION = ("gamma", "delta"), ("alpha", "beta", "epsilon")
SAVED_SHARE = 0.61  # 5.1: the share of the ring's calculation time that CPS saves


def figure9() -> Iterator[Row]:
    """Yield rows on the text's claims about times on 12 servers, split into calculation and communication (seconds)."""
    for speed, beta in LINKS.items():
        terms_by_plan = price_plans(SPLIT_SERVERS, "genmodel", beta)
        seconds_by_plan = {
            name: (_sum_terms(terms, CALCULATION), _sum_terms(terms, COMMUNICATION))
            for name, terms in terms_by_plan.items()
        }
        proof = [
            f"{name}: calculation {calculation:.4f} s, communication {communication:.4f} s"
            for name, (calculation, communication) in seconds_by_plan.items()
        ]
        falls = all(a > b for a, b in pairwise(calculation for calculation, _ in seconds_by_plan.values()))
        details = {"engine": "genmodel", "proof": proof}
        yield claim(f"{speed}, calculation falls with the fan-in", falls, note="5.1: monotonically", **details)
        hierarchical = [
            communication for name, (_, communication) in seconds_by_plan.items() if name not in ("Ring", "CPS")
        ]
        (ring_calculation, ring_communication), (cps_calculation, cps_communication) = (
            seconds_by_plan[name] for name in ("Ring", "CPS")
        )
        flat_longer = min(ring_communication, cps_communication) > max(hierarchical)
        note = "5.1: by latency, and by incast"
        yield claim(f"{speed}, ring and CPS communicate longest", flat_longer, note=note, **details)
        if speed == "100 Gbit/s":
            saved = 1 - cps_calculation / ring_calculation
            memory = 1 - terms_by_plan["CPS"]["delta"] / terms_by_plan["Ring"]["delta"]
            ours = {"part": round(saved, 3), "part of memory access alone": round(memory, 3)}
            yield row(
                f"{speed}, CPS calculates less than ring by", {"part": SAVED_SHARE}, ours,
                agreement(is_near(saved, SAVED_SHARE), saved > 0), note="5.1, Figure 9", engine="genmodel",
                proof=proof,
                deviation=f"memory access alone falls by {memory:.3f}; additions, which both make as many of, take as "
                "long again with the gamma of Table 5, and are hardly there in what was measured",
            )  # fmt: skip


def _sum_terms(terms: Terms, names: tuple[str, ...]) -> float:
    return sum(terms[name] for name in names)
