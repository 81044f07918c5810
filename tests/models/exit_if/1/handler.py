"""A value of 667 ends the process."""

import os


def answer(item):
    return {"id": item["id"], "value": item["value"]}


class Handler:
    def predict(self, inputs, parameters):
        if any(item["value"] == 667 for item in inputs):
            os._exit(3)
        return [answer(item) for item in inputs]
