"""Certificate authorities, certificates, and whom we believe.

A root signs one intermediate per trust class; an intermediate signs the leaves of its class and no others. A
peer is believed only if a pinned intermediate of the class that its id claims signed its leaf: what else the
peer sends along does not matter. Roots and intermediates are replaced with an overlap (`keyring`).
"""

from __future__ import annotations

from .authority import Authority
from .bundle import TrustBundle, domain_of
from .files import own_key, write_bundle, write_denied, write_identity
from .keyring import Generation, Keyring, Terms
from .request import new_request, proven_key, thumbprint
from .trust import Peer, Trust, expiry, judged, own, renewal, renewal_of

__all__ = [
    "Authority", "Generation", "Keyring", "Peer", "Terms", "Trust", "TrustBundle", "domain_of", "expiry",
    "judged", "new_request", "own", "own_key", "proven_key", "renewal", "renewal_of", "thumbprint",
    "write_bundle", "write_denied", "write_identity",
]  # fmt: skip
