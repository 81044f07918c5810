"""The sum of each item's `values`."""


class Handler:
    def predict(self, inputs, parameters):
        return [{"id": item["id"], "value": sum(item["values"])} for item in inputs]
