"""One answer of a model, with as many calls as it takes.

performer       an attempt of an llm task
model_settings  what settings say about calls
endpoints       which server, with which key
list_prices     what common models cost where no setting says it
limiter         limits across all processes of a user
chat            a thin client of chat/completions
chat_answer     an answer, put together from documents and events, or what went wrong
answer_schemas  answers held to a JSON Schema
"""
