"""ModelPool: where models are. MCPServerSet: where tools are.

Credentials are named here, and read by the gateways alone. What these structs cannot refuse without CEL, the
gateways refuse again.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from .agent import ModelId
from .shape import HOST, Key, Label, Name, Rule, Url, atomic, keyed, lasting, ruled, text, unique

UNTRUSTED_INPUT, SENSITIVE, EGRESS = TRIFECTA = ("untrusted_input", "sensitive", "egress")
"""The tags that together let a stranger's text send data out."""

HEADER = r"^[A-Za-z0-9_.-]{1,64}$"
"""Headers that a credential may go into …"""
RESERVED_HEADER = (
    "^(host|accept|accept-encoding|connection|content-length|content-type|cookie|te|transfer-encoding|upgrade"
    "|mcp-.*)$"
)
"""… unless its name in lower case is as this says: those are the gateways' to set."""
PARAMETER = r"^[A-Za-z0-9_.-]{1,64}$"
"""Parameters of a URL that a credential may go into."""

Provider = Literal["openai", "anthropic"]

_Tag = Annotated[str, text(63, "^[a-z0-9]([-a-z0-9_.]*[a-z0-9])?$", "a tag: a lower case word")]
_LOOPBACK = r"(localhost|127\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}|\[::1\])"
_ProviderUrl = Annotated[
    str,
    text(
        2048,
        rf"^(https://{HOST}|http://{_LOOPBACK})(:[0-9]{{1,5}})?(/[^\s?#]*)?(\?[^\s#]*)?$",
        "an https URL, or http on loopback, without user and fragment",
    ),
]
_Header = Annotated[
    str,
    text(64, HEADER, "the name of an HTTP header"),
    ruled(Rule(f"!self.matches('(?i){RESERVED_HEADER}')", "is a header that the gateway sets")),
]
_Parameter = Annotated[str, text(64, PARAMETER, "the name of a parameter of a URL")]
_Tool = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^\S+$")]


class SecretRef(msgspec.Struct, rename="camel", frozen=True):
    """One key of a Secret of the same namespace."""

    name: Name
    """The Secret."""
    key: Key
    """The key in it."""


class Credential(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What the endpoint wants to see. The gateway shows it; agents never have it."""

    rules: ClassVar = (Rule("!has(self.header) || !has(self.query)", "header or query, not both", ".query"),)

    secret_ref: SecretRef
    header: _Header = ""
    """The header that it goes into. Absent: Authorization, as a bearer token; x-api-key of provider
    anthropic."""
    query: _Parameter = ""
    """Instead of a header, the parameter of the URL that it goes into."""


class Endpoint(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Where the models are, once."""

    name: Label
    """What metrics and records call it; unique in the pool."""
    url: _ProviderUrl
    """Its base URL, such as https://api.example.com/v1."""
    credential: Credential | None = None


class Budget(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """So many tokens."""

    per: Literal["pool", "fleet", "agent"]
    """Who has them: all users of the pool together, each fleet, or each agent."""
    tokens: Annotated[int, Meta(ge=1, le=2**53)]
    """Tokens, of prompts and answers together."""
    window: Annotated[str, lasting("1s", "8760h")] = ""
    """For how long: 1h, 24h. Windows begin at multiples of it since 1970, in UTC. Absent: for ever."""


_ONE_A_WINDOW = Rule(
    "self.all(a, self.exists_one(b, a.per == b.per && duration(has(a.window) ? a.window : '0s')"
    " == duration(has(b.window) ? b.window : '0s')))",
    "two budgets are per the same thing and window",
)


class PoolSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Endpoints of one provider, and their models."""

    rules: ClassVar = (
        Rule("!has(self.endpoint) || !has(self.endpoints)", "endpoint or endpoints, not both", ".endpoints"),
    )

    endpoint: Url | None = None
    """Its base URL, such as https://api.example.com/v1. Agents refuse plain http except on loopback.
    Absent, and no endpoints: the stand-in of this installation, which is no model and says so."""
    endpoints: Annotated[list[Endpoint], keyed("name", 16, least=1)] = []
    """Instead of endpoint, for the model gateway: it asks the first, and the next when that fails."""
    provider: Provider = "openai"
    """Whose API the endpoints speak."""
    models: Annotated[list[ModelId], unique(64, least=1)]
    """The models that agents may ask for; the first is the default."""
    budgets: Annotated[list[Budget], atomic(16), ruled(_ONE_A_WINDOW)] = []
    """What may be spent. The model gateway refuses a call that may exceed one of them."""
    on_store_down: Literal["refuse", "allow"] = "refuse"
    """What becomes of calls while the budgets cannot be looked up."""

    def for_gateway(self) -> list[str]:
        """What it says that only the model gateway can do: names of fields."""
        said = {"endpoints": self.endpoints, "budgets": self.budgets}
        return [name for name, value in said.items() if value]


class Auth(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What the server wants to see. The gateway shows it; agents never have it."""

    rules: ClassVar = (
        Rule(
            "has(self.secretRef) == (self.mode != 'none')",
            "goes with the modes header and oauth: needed there, refused elsewhere",
            ".secretRef",
        ),
        Rule("!has(self.name) || self.mode == 'header'", "goes with mode header", ".name"),
        Rule(
            "has(self.clientId) == (self.mode == 'oauth')",
            "goes with mode oauth: needed there, refused elsewhere",
            ".clientId",
        ),
        Rule("!has(self.issuer) || self.mode == 'oauth'", "goes with mode oauth", ".issuer"),
        Rule("!has(self.scope) || self.mode == 'oauth'", "goes with mode oauth", ".scope"),
    )

    mode: Literal["none", "header", "oauth"]
    """Nothing, a header with what is in the Secret, or a token by OAuth 2 client credentials."""
    secret_ref: SecretRef | None = None
    name: _Header = ""
    """The header. Absent: Authorization, where a value without a scheme is a bearer token."""
    client_id: Annotated[str, text(256, r"^[!-~]+$", "a client id of OAuth")] = ""
    """Who asks for tokens; the secret is the Secret's."""
    issuer: Url = ""
    """Who gives tokens. Absent: the first that the server's metadata (RFC 9728) names."""
    scope: Annotated[str, text(1024, r"^[!-~]+( [!-~]+)*$", "scopes, a space between two")] = ""
    """What tokens are for."""


class ToolRules(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Which of the server's tools there are. Names, or globs such as read_*; case counts."""

    allow: Annotated[list[_Tool], unique(64)] | None = None
    """These. Absent: all."""
    deny: Annotated[list[_Tool], unique(64)] = []
    """Not these, whatever is allowed."""


class Server(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """One MCP server."""

    name: Label
    """What agents call it; unique in the set."""
    endpoint: Url
    """Where it is."""
    tags: Annotated[list[_Tag], unique(16)] = []
    """What kind of tools it has, in the agents' words."""
    auth: Auth | None = None
    tools: ToolRules | None = None
    arguments: Annotated[dict[str, dict[str, Any]], Meta(max_length=64)] = {}
    """By tool, a JSON Schema (2020-12) that its arguments have to satisfy beside the server's own; without
    $ref and patternProperties."""

    def for_gateway(self) -> list[str]:
        """What it says that only the MCP gateway can do: names of fields."""
        has_auth = self.auth is not None and self.auth.mode != "none"
        said = {"auth": has_auth, "tools": self.tools, "arguments": self.arguments}
        return [name for name, value in said.items() if value]


class ServerSetSpec(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """MCP servers under names that are unique in the set."""

    servers: Annotated[list[Server], keyed("name", 64, least=1)]
    """The servers."""
