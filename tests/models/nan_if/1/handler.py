"""A value of 669 is answered with a number that is none."""

import math


def answer(item):
    return {"id": item["id"], "value": item["value"]}


class Handler:
    def predict(self, inputs, parameters):
        return [answer(item) if item["value"] != 669 else {"id": item["id"], "value": math.nan} for item in inputs]
