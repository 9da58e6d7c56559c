class Loop:
	def __init__(self,	batch_size	=	10):	# Tabs, everywhere
		self.loader	=	DataLoader(data,	batch_size=batch_size)

		if True:
			self.text	=	"batch_size = 10\r"
