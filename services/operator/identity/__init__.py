"""Who is who: the certificate authority, and certificates for those who prove by a token who they are.

Serves IdentityService on a listener without client certificates (`server`). What a token's bearer may be is
decided by `attest` from what `evidence` reads; one token serves one key (`bindings`). The authority lives in
a Secret and rotates by itself (`vault`); whom to trust and who is denied is published in ConfigMaps
(`publication`, `denials`). `office` puts all of it together for the operator. Never certified: anything for
the operator itself, which holds the authority and needs no token.
"""
