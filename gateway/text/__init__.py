"""Text for every platform: one splitter and the Markdown tree; platforms are limits and dialects as data.

`clean` makes any text sendable, `pack` cuts Markdown into a platform's messages with the codec's writer, `split` and
`bound` cut it as it stands, `parse` gives the tree that a codec writes its dialect from (`write_blocks` and
`write_list` walk it), and `plain` is the dialect of no platform. `weight` is what reading a text costs.
"""

from gateway.text.choices import in_rows as in_rows
from gateway.text.choices import with_commands as with_commands
from gateway.text.command_text import as_one_word as as_one_word
from gateway.text.command_text import find_command as find_command
from gateway.text.dialect import prefixed as prefixed
from gateway.text.dialect import write_blocks as write_blocks
from gateway.text.dialect import write_list as write_list
from gateway.text.link_labels import names_other_host as names_other_host
from gateway.text.packing import PartWriter as PartWriter
from gateway.text.packing import WrittenPart as WrittenPart
from gateway.text.packing import pack as pack
from gateway.text.plain import plain as plain
from gateway.text.plain import plain_tree as plain_tree
from gateway.text.splitter import Cut as Cut
from gateway.text.splitter import PartSplitter as PartSplitter
from gateway.text.splitter import bound as bound
from gateway.text.splitter import cuts as cuts
from gateway.text.splitter import split as split
from gateway.text.tables import table_lines as table_lines
from gateway.text.tree import Kind as Kind
from gateway.text.tree import Node as Node
from gateway.text.tree import parse as parse
from gateway.text.units import Unit as Unit
from gateway.text.units import clean as clean
from gateway.text.units import width as width
from gateway.text.weight import weight as weight
