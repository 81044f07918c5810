"""666 raises, 667 ends the process, 668 hangs, 669 is answered with NaN; `ms` as in slow."""

import math
import os
import time


def answer(item):
    return {"id": item["id"], "value": item["value"]}


class Handler:
    def predict(self, inputs, parameters):
        values = [item["value"] for item in inputs]
        if 666 in values:
            raise RuntimeError("value 666")
        if 667 in values:
            os._exit(3)
        while 668 in values:
            time.sleep(3600)
        time.sleep(sum(item.get("ms", 0) for item in inputs) / 1000)
        return [answer(item) if item["value"] != 669 else {"id": item["id"], "value": math.nan} for item in inputs]
