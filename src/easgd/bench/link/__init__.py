"""The link laboratory: two machines made of network namespaces, and a link between them that is slow on purpose.

`network` makes machines and link, `guardian` removes them, `laboratory` adds Ray; `speeds` is `easgd bench link`.
"""
