"""Variables of a command that its workers in other processes take over."""

from verl_pivot.workers.command_home import passed_variables


def test_workers_take_over_only_variables_of_places_and_api_keys() -> None:
    environment = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "RAY_ADDRESS": "auto",
        "HF_HOME": "/models",
        "VERL_PIVOT_SANDBOX_URLS": "http://a",
        "OPENAI_API_KEY": "sk-1",
    }

    assert list(passed_variables(environment)) == ["HF_HOME", "VERL_PIVOT_SANDBOX_URLS", "OPENAI_API_KEY"]
