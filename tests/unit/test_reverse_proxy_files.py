"""The files for proxies in front say what the settings and the compose file say."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ADDRESS = "https://chat.example.org/chat/"


def test_each_names_the_two_settings_that_belong_to_it() -> None:
    """Nobody sets up a proxy from one of them and leaves the page open to everybody."""
    for name in ("nginx.conf", "Caddyfile", "traefik.yml"):
        text = (DEPLOY / name).read_text("utf-8")
        assert f"PARLOUR_WEB__PUBLIC_URL{'=' if name != 'traefik.yml' else ': '}{ADDRESS}" in text, name
        assert "PARLOUR_WEB__TRUSTED_PROXIES" in text, name


def test_traefik_s_file_goes_with_the_compose_file() -> None:
    """It changes the one service there is, at the port it listens on, and opens no port of the host's."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    front = yaml.safe_load((DEPLOY / "traefik.yml").read_text("utf-8"))
    assert set(front["services"]) == set(compose["services"])
    service = front["services"]["parlour"]
    port = service["labels"]["traefik.http.services.parlour.loadbalancer.server.port"]
    assert port == compose["services"]["parlour"]["environment"]["PARLOUR_WEB__PORT"]
    assert "ports" not in service
    assert set(service["networks"]) - {"default"} == set(front["networks"])


def test_nginx_and_caddy_lead_to_the_port_we_listen_on() -> None:
    """As it is without a setting."""
    for name in ("nginx.conf", "Caddyfile"):
        assert "127.0.0.1:8787" in (DEPLOY / name).read_text("utf-8")
