"""The settings of each component of the local home."""

from __future__ import annotations

from collections.abc import Mapping

from libs.cluster.local import SYSTEM
from libs.settings import load
from libs.state import State
from services.admission.settings import Settings as AdmissionSettings
from services.apiserver.settings import Settings as ApiserverSettings
from services.coordination.settings import Settings as CoordinationSettings
from services.mcpgateway.settings import Settings as McpGatewaySettings
from services.modelgateway.settings import Settings as ModelGatewaySettings
from services.operator.settings import Settings as OperatorSettings
from services.provider.settings import Settings as ProviderSettings
from services.scaler.settings import Settings as ScalerSettings

from .ports import LOOPBACK as _LOOPBACK
from .ports import Ports
from .settings import Settings


class HomeSettings:
    """The settings of each component, from the person's environment and what the plane decides itself."""

    def __init__(self, settings: Settings, state: State, environ: Mapping[str, str], ports: Ports) -> None:
        """SettingsError names what is wrong."""
        identity, coordination = ports["identity"], ports["coordination"]
        self.identity_address = f"{_LOOPBACK}:{identity}"
        self.coordination_address = f"{_LOOPBACK}:{coordination}"
        common = {
            "AGENTCTL_FRONT": settings.front,
            "AGENTCTL_LOG_LEVEL": settings.log_level,
            "AGENTCTL_IDENTITY_ADDRESS": self.identity_address,
            "AGENTCTL_TOKEN_FILE": "set later",
            "AGENTCTL_TRUST_DIR": "set later",
        }
        store = {
            "COORDINATION_STORE": settings.store,
            "COORDINATION_HOST": _LOOPBACK,
            "COORDINATION_PORT": str(coordination),
            "COORDINATION_DATA_DIR": str(state.data),
            "AGENTCTL_TLS_DIR": "set later",
        }
        if settings.database_file:
            store["COORDINATION_DATABASE_FILE"] = str(settings.database_file)
        self.coordination = load(CoordinationSettings, "COORDINATION_", {**environ, **common, **store})
        self.provider = load(
            ProviderSettings,
            "PROVIDER_",
            {**environ, **common, "PROVIDER_LISTEN": f"{_LOOPBACK}:0", "PROVIDER_TLS": "true"},
        )
        shared = {**environ, **common}
        self.apiserver = load(ApiserverSettings, "APISERVER_", shared | _at("APISERVER", ports))
        self.admission = load(AdmissionSettings, "ADMISSION_", shared | _at("ADMISSION", ports))
        scaler = ports["scaler"]
        asks = {
            "AGENTCTL_COORDINATION_ADDRESS": self.coordination_address,
            "AGENTCTL_TLS_DIR": "set later",
            "SCALER_HOST": _LOOPBACK,
            "SCALER_PORT": str(scaler),
        }
        its_own_front = {name: value for name, value in common.items() if name != "AGENTCTL_FRONT"}
        self.scaler = load(ScalerSettings, "SCALER_", {**environ, **its_own_front, **asks})
        self.stand_in_url = f"https://localhost:{ports['provider']}/v1"
        models = _at("MODELGATEWAY", ports, "modelgateway-edge") | {
            "MODELGATEWAY_STAND_IN_URL": self.stand_in_url,
            "MODELGATEWAY_STORE": settings.store,
            "MODELGATEWAY_DATA_DIR": str(state.data),  # coordination's server, and a schema of its own there
        }
        if settings.database_file:
            models["MODELGATEWAY_DATABASE_FILE"] = str(settings.database_file)
        self.modelgateway = load(ModelGatewaySettings, "MODELGATEWAY_", shared | models)
        tools = _at("MCPGATEWAY", ports, "mcpgateway-edge") | {"MCPGATEWAY_ALLOW_LOOPBACK": "true"}
        self.mcpgateway = load(McpGatewaySettings, "MCPGATEWAY_", shared | tools)
        ours = {
            "AGENTCTL_COORDINATION_ADDRESS": self.coordination_address,
            "AGENTCTL_SCALER_ADDRESS": f"{_LOOPBACK}:{scaler}",
            "AGENTCTL_TLS_DIR": str(state.identity("operator")),
            "OPERATOR_HOST": _LOOPBACK,
            "OPERATOR_PORT": str(ports["operator"]),
            "OPERATOR_IDENTITY_PORT": str(identity),
            "OPERATOR_REPLICA": "plane",  # one at a time, so none waits for the lease of the last
            "OPERATOR_NAMESPACE": SYSTEM,
            "OPERATOR_STAND_IN_URL": self.stand_in_url,
            "OPERATOR_LOOPBACK": "$(AGENT_HOST)",  # pods share the machine's; their addresses are loopback
        }
        if settings.gateways:
            ours["AGENTCTL_MODEL_GATEWAY_URL"] = f"https://localhost:{self.modelgateway.edge_port}/v1"
            ours["AGENTCTL_MCP_GATEWAY_URL"] = f"https://localhost:{self.mcpgateway.edge_port}"
        self.operator = load(OperatorSettings, "OPERATOR_", {**environ, **common, **ours})


def _at(component: str, ports: Ports, edge: str = "") -> dict[str, str]:
    """A component that serves gRPC, and HTTPS if its edge has a port."""
    return {
        f"{component}_HOST": _LOOPBACK,
        f"{component}_PORT": str(ports[component.lower()]),
        f"{component}_EDGE_PORT": str(ports[edge]) if edge else "",
        "AGENTCTL_TLS_DIR": "set later",
    }
