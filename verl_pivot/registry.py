"""Registry: name -> a verifier, filter, format or tool, imported when first asked for and made from its options."""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from verl_pivot.errors import ConfigError, OptionsError
from verl_pivot.types import JsonObject
from verl_pivot.user_modules import load_modules
from verl_pivot.validation import first_problem

MadeT = TypeVar("MadeT")
SourceT = TypeVar("SourceT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Entry of a registry: what is registered under one name."""

    thing: Any
    """The verifier, filter, format or tool itself; with `options` the function that makes it."""
    options: type[BaseModel] | None
    """Type of the options; None for a thing that takes none."""
    source: str
    """Dotted name of the function or class that was registered."""


class Registry(Generic[MadeT]):
    """Names of one kind of thing: those that ship with the package, imported when first asked for, and the user's own.

    Example:
        filters: Registry[Filter] = Registry(
            "filter", shipped={"solved": "verl_pivot.quality.solved"}, remedy="--filter-module loads your own"
        )

        @filters.register("solved", options=SolvedOptions)
        def solved(options: SolvedOptions) -> Filter: ...

        filters.make("solved", {"min_samples": 4})
    """

    def __init__(self, kind: str, *, shipped: Mapping[str, str], remedy: str) -> None:
        """Start with what the package ships.

        Args:
            kind: Word for one of these things in messages: "verifier".
            shipped: {name: dotted module that registers it}.
            remedy: How users register their own; the message about an unknown name ends with it.
        """
        self._kind = kind
        self._shipped = shipped
        self._remedy = remedy
        self._registered: dict[str, Registration] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All names in alphabetical order."""
        return tuple(sorted({*self._registered, *self._shipped}))

    def register(self, name: str, *, options: type[BaseModel] | None = None) -> Callable[[SourceT], SourceT]:
        """Decorator that registers a thing under a name, or, with `options`, the function that makes the thing.

        Args:
            name: A name that nothing else of this kind has.
            options: The type of the options; the decorated function gets an instance of it.

        Raises:
            ConfigError: If something else has the name already.
        """

        def decorator(source: SourceT) -> SourceT:
            self.add(name, source, source=source, options=options)
            return source

        return decorator

    def add(self, name: str, thing: Any, *, source: object, options: type[BaseModel] | None = None) -> None:
        """Register a thing. Adding the same source again replaces the thing: a module may be imported twice.

        Args:
            name: A name that nothing else of this kind has.
            thing: The thing itself; with `options` the function that makes it.
            source: The function or class that was registered, which messages name.
            options: The type of the options that `thing` gets an instance of.

        Raises:
            ConfigError: If something else has the name already.
        """
        if name in self._shipped and self._shipped[name] not in sys.modules:
            importlib.import_module(self._shipped[name])  # a user's thing of the same name is then refused below
        known, new = self._registered.get(name), _qualified_name(source)
        if known is not None and known.source != new:
            raise ConfigError(
                f"{self._kind} {name!r} is registered twice, by {known.source} and {new}; rename one of them"
            )
        self._registered[name] = Registration(thing=thing, options=options, source=new)

    def find(self, name: str) -> Registration:
        """The entry of a name.

        Raises:
            ConfigError: If the name is unknown.
        """
        if name not in self._registered and name in self._shipped:
            importlib.import_module(self._shipped[name])
        if name not in self._registered:
            raise ConfigError(f"unknown {self._kind} {name!r}; known: {', '.join(self.names)}. {self._remedy}")
        return self._registered[name]

    def make(self, name: str, options: JsonObject) -> MadeT:
        """The thing of that name, made with these options.

        Raises:
            ConfigError: If the name is unknown.
            OptionsError: If the thing does not take the options.
        """
        registration = self.find(name)
        if registration.options is None:
            if options:
                raise OptionsError(f"{self._kind} {name!r} takes no options, got {sorted(options)}")
            thing: MadeT = registration.thing
            return thing
        try:
            made: MadeT = registration.thing(registration.options.model_validate(options))
        except ValidationError as error:
            problem = first_problem(error, name, model=registration.options)
            raise OptionsError(f"{self._kind} {problem}") from error
        return made

    def all(self) -> tuple[MadeT, ...]:
        """All things, made without options: the shipped ones in their order, then the user's as they were added."""
        own = [name for name in self._registered if name not in self._shipped]
        return tuple(self.make(name, {}) for name in (*self._shipped, *own))

    def load(self, modules: Iterable[str]) -> None:
        """Import modules that register things of this kind: dotted names, or paths of Python files.

        Raises:
            ConfigError: If a module cannot be found.
        """
        load_modules(modules, self._kind)


def _qualified_name(source: object) -> str:
    return f"{getattr(source, '__module__', '')}.{getattr(source, '__qualname__', type(source).__qualname__)}"
