"""Options of actors and tasks: their names, their checks, and what the native core is given."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from troupe._config import check_amount, check_count, check_resource_count
from troupe.actors import _environment, _session

CALL_TIMEOUT_S = 86400.0  # Of a call that names none.
START_TIMEOUT_S = 60.0
ASYNC_CONCURRENCY = 1000
RETURNS_MAX = 10_000
GROUPS_MAX = 64
GROUPED_CALLS = 1000  # Of all groups together that run or wait in the process.
_ACTOR_CPUS = 0.0  # An actor that nobody calls keeps nothing from others; who computes says so.

_COMMON = ("num_cpus", "num_gpus", "memory", "resources", "label_selector", "runtime_env")
ACTOR_OPTIONS = (*_COMMON, "name", "namespace", "get_if_exists", "lifetime", "max_restarts",
                 "max_task_retries", "max_concurrency", "concurrency_groups", "max_pending_calls",
                 "scheduling_strategy", "node", "node_soft", "placement_group",
                 "placement_group_bundle_index", "priority", "start_timeout",
                 "allow_out_of_order_execution")
TASK_OPTIONS = (*_COMMON, "max_retries", "timeout", "num_returns", "retry_exceptions", "name",
                "max_calls", "look_ahead", "scheduling_strategy", "node", "node_soft",
                "placement_group", "placement_group_bundle_index")
METHOD_OPTIONS = ("timeout", "retries", "look_ahead", "num_returns", "name", "concurrency_group")


def check_names(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raises TypeError for an option that does not exist, with what may have been meant."""
    for name in given:
        if name in known:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
        raise TypeError(f"{what} have no option {name!r}{hint}")


def check_name(what: str, name: Any) -> str:
    """A name to look for.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r}")
    if not name:
        raise ValueError(f"{what} must not be empty")
    return name


def with_strategy(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with what ``scheduling_strategy`` says, if it is an object, as options.

    Raises:
        TypeError, ValueError: there is no such strategy, or two options say different places.
    """
    merged = dict(options)
    strategy = merged.get("scheduling_strategy")
    if strategy is None:
        return merged
    if isinstance(strategy, str):
        if strategy.upper() not in ("DEFAULT", "SPREAD"):
            raise ValueError(
                f'scheduling_strategy must be "DEFAULT", "SPREAD" or an object of '
                f"troupe.util.scheduling_strategies, not {strategy!r}")
        return merged
    if not hasattr(strategy, "as_options"):
        raise TypeError("scheduling_strategy must be a string or an object of "
                        f"troupe.util.scheduling_strategies, not {strategy!r}")
    del merged["scheduling_strategy"]
    for name, value in strategy.as_options().items():
        if name == "label_selector":
            value = [*labels_of(merged), *value]
        elif merged.get(name) not in (None, value, -1 if name.endswith("index") else ""):
            raise ValueError(f"scheduling_strategy and {name} say different places")
        merged[name] = value
    return merged


def resources_of(options: Mapping[str, Any], cpus: float) -> dict[str, float]:
    """What an actor or a task needs, by resource."""
    needs = {"CPU": cpus}
    check_resource_count("resources", len(options.get("resources") or {}))
    for name, amount in (options.get("resources") or {}).items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"resources: names are strings, not {name!r}")
        if name in ("CPU", "GPU"):
            raise ValueError(f"resources: ask for {name} by num_{name.lower()}s")
        needs[name] = check_amount(f"resources[{name!r}]", amount)
    for option, name in (("num_cpus", "CPU"), ("num_gpus", "GPU"), ("memory", "memory")):
        if options.get(option) is not None:
            needs[name] = check_amount(option, options[option])
    return {name: amount for name, amount in needs.items() if amount > 0}


def actor_options(options: Mapping[str, Any], is_async: bool) -> dict[str, Any]:
    """The native core's options of an actor.

    Raises:
        TypeError, ValueError: an option is unusable; its name is in the message.
    """
    check_names(options, ACTOR_OPTIONS, "actors")
    options = with_strategy(options)
    lifetime = options.get("lifetime")
    if lifetime not in (None, "detached", "non_detached"):
        raise ValueError(f'lifetime must be None or "detached", not {lifetime!r}')
    name = options.get("name") or ""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {name!r}")
    _session.check_namespace(options.get("namespace"))
    if options.get("get_if_exists") and not name:
        raise ValueError("get_if_exists needs a name")
    strategy = str(options.get("scheduling_strategy") or "DEFAULT").upper()
    concurrency = concurrency_of(options, is_async)
    groups = concurrency_groups(options)
    if groups:  # The process sees to it: a group's turn must not wait for another group's.
        concurrency = max(GROUPED_CALLS, concurrency + sum(groups.values()))
    in_order(options, concurrency == 1)
    start_timeout = options.get("start_timeout")
    group = _group_of(options.get("placement_group"))
    native: dict[str, Any] = {
        "name": name,
        "get_if_exists": bool(options.get("get_if_exists")),
        "detached": lifetime == "detached",
        "resources": resources_of(options, _ACTOR_CPUS),
        "strategy": "spread" if strategy == "SPREAD" else "hybrid",
        "labels": labels_of(options),
        "prefer": list(options.get("prefer_labels") or ()),
        "node": options.get("node") or "",
        "node_soft": bool(options.get("node_soft")),
        "placement_group": group,
        "bundle": options.get("placement_group_bundle_index", -1),
        "priority": options.get("priority", 0),
        "max_restarts": check_count("max_restarts", options.get("max_restarts", 0), least=-1),
        "max_concurrency": concurrency,
        "env": _environment.variables_of(_environment.check(options.get("runtime_env"))),
        "timeout_s": check_amount(
            "start_timeout", START_TIMEOUT_S if start_timeout is None else start_timeout),
    }
    if options.get("max_pending_calls") not in (None, -1):
        native["mailbox_depth"] = check_count("max_pending_calls", options["max_pending_calls"])
        native["overflow"] = "refuse"
    return native


def concurrency_of(options: Mapping[str, Any], is_async: bool) -> int:
    """How many calls of an actor run at once, but for those of concurrency groups."""
    given = options.get("max_concurrency")
    if given is None:
        return ASYNC_CONCURRENCY if is_async else 1
    return check_count("max_concurrency", given)


def in_order(options: Mapping[str, Any], one_by_one: bool) -> bool:
    """Whether calls of an actor wait for those before them whose arguments are not ready.

    Raises:
        TypeError, ValueError: ``allow_out_of_order_execution`` is unusable.
    """
    any_order = options.get("allow_out_of_order_execution")
    if any_order is None:
        return one_by_one
    if not isinstance(any_order, bool):
        raise TypeError(f"allow_out_of_order_execution must be a bool, not {any_order!r}")
    if not any_order and not one_by_one:
        raise ValueError("allow_out_of_order_execution=False is for actors that run one call at a "
                         "time; threaded and async ones keep no order")
    return not any_order


def concurrency_groups(options: Mapping[str, Any]) -> dict[str, int]:
    """How many calls of each concurrency group run at once.

    Raises:
        TypeError, ValueError: the option is unusable.
    """
    given = options.get("concurrency_groups") or {}
    if not isinstance(given, Mapping):
        raise TypeError(f"concurrency_groups must be counts by name, not {given!r}")
    if len(given) > GROUPS_MAX:
        raise ValueError(f"concurrency_groups has {len(given)} names, over {GROUPS_MAX}")
    return {check_group(name): check_count(f"concurrency_groups[{name!r}]", count)
            for name, count in given.items()}


def check_group(name: Any) -> str:
    """A name of a concurrency group.

    Raises:
        TypeError, ValueError: it is none.
    """
    check_name("the name of a concurrency group", name)
    if ":" in name:
        raise ValueError(f"the name of a concurrency group has no ':' in it: {name!r}")
    return str(name)


def _group_of(group: Any) -> str:
    if group in (None, ""):
        return ""
    id = getattr(group, "id", group)
    if not isinstance(id, str):
        raise TypeError(f"placement_group must be a PlacementGroup, not {group!r}")
    return id


def task_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The native core's options of a task.

    Raises:
        TypeError, ValueError: an option is unusable; its name is in the message.
    """
    check_names(options, TASK_OPTIONS, "tasks")
    with_strategy(options)
    _environment.check(options.get("runtime_env"))
    _group_of(options.get("placement_group"))
    check_returns(options.get("num_returns", 1))
    check_retry_exceptions(options.get("retry_exceptions"))
    if not isinstance(options.get("name") or "", str):
        raise TypeError(f"name must be a string, not {options['name']!r}")
    if options.get("max_calls") is not None:
        check_count("max_calls", options["max_calls"], least=0)
    return {
        "resources": resources_of(options, 1.0),
        "labels": labels_of(options),
        "max_retries": check_count("max_retries", options.get("max_retries", 3), least=-1),
        "timeout_s": timeout_of(options),
    }


def check_returns(count: Any) -> None:
    """Raises for what ``num_returns`` cannot be."""
    if count in ("dynamic", "streaming"):
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError('num_returns must be a whole number, "dynamic" or "streaming", '
                        f"not {count!r}")
    if not 0 <= count <= RETURNS_MAX:
        raise ValueError(f"num_returns must lie between 0 and {RETURNS_MAX}, not {count}")


def check_retry_exceptions(kinds: Any) -> None:
    """Raises for what ``retry_exceptions`` cannot be: a bool, or a list of exception types."""
    if kinds is None or isinstance(kinds, bool):
        return
    if not isinstance(kinds, (list, tuple)) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError(
            f"retry_exceptions must be a bool or a list of exception types, not {kinds!r}")


def timeout_of(options: Mapping[str, Any]) -> float:
    """Seconds that a call may take."""
    timeout = options.get("timeout")
    return CALL_TIMEOUT_S if timeout is None else check_amount("timeout", timeout)


def labels_of(options: Mapping[str, Any]) -> list[str]:
    """Terms that must hold: ["zone=a"] or {"zone": "a"}."""
    selector = options.get("label_selector")
    if selector is None:
        return []
    if isinstance(selector, Mapping):
        return [f"{key}={value}" for key, value in selector.items()]
    if isinstance(selector, str) or not all(isinstance(term, str) for term in selector):
        raise TypeError('label_selector must be a dict or a list of terms such as "zone=a"')
    return list(selector)
